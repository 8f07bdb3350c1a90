"""The pages on which a person decides about a login: plain HTML without scripts, one function a page.

Everything that a client or a person said is escaped. The policy of the page lets nothing be loaded, framed or sent
elsewhere; there are no cookies, so no other site can act for the person (`api/login.py` says what stands for them).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from starlette.responses import Response

from controlplane.clock import format_time
from controlplane.identity.logins import Asking

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 34rem; margin: 3rem auto; padding: 0 1rem; color: #1d2330 }
h1 { font-size: 1.4rem } label { display: block; margin: .8rem 0 } dt { font-weight: 600 } dd { margin: 0 0 .5rem }
input[type=text], input[type=password], select { font: inherit; width: 100%; padding: .4rem; box-sizing: border-box }
button { font: inherit; padding: .5rem 1.2rem; margin: 1rem .6rem 0 0 } .error { color: #a11 }
fieldset { border: 1px solid #ccd; margin: 1rem 0 }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An organisation in which the person may give a key, and the projects that they see there."""

    org: str
    role: str
    projects: Sequence[str]


def ask_who(action: str, fields: Mapping[str, str], *, user_code: str | None, problem: str = "") -> str:
    """Who are you, and (for a device) which code do you see?"""
    code = (
        ""
        if user_code is None
        else f"""<label>The code that your program shows
<input type="text" name="user_code" value="{escape(user_code)}" maxlength="32" autocomplete="off" required></label>"""
    )
    return _page(
        "Sign in to Nodus",
        f"""{_problem(problem)}<p>A program asks for a key of yours. Go on only if you have just started it.</p>
<form method="post" action="{escape(action)}">{_hidden(fields)}{code}
<label>An API key or token of yours, or the token of your invite, which shows who you are
<input type="password" name="credential" maxlength="16384" autocomplete="off" required></label>
<button>Continue</button></form>""",
    )


def ask_whether(action: str, fields: Mapping[str, str], asking: Asking, choices: Sequence[Choice], days: int) -> str:
    """This is who asks; shall they have it?"""
    told = {
        "Program": asking.client,
        "Computer": asking.host,
        "Address": asking.address,
        "Asked at": format_time(asking.since),
    }
    facts = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in told.items() if text)
    several = len(choices) > 1
    return _page(
        "Allow this program?",
        f"""<p>It will be able to do in your name what you may, for {days} days or until you log it out.</p>
<dl>{facts}</dl><p><strong>If this is not you at your own computer, deny it.</strong></p>
<form method="post" action="{escape(action)}">{_hidden(fields)}{"".join(_choice(one, several) for one in choices)}
<label><input type="checkbox" name="only" value="yes"> Only in the chosen project</label>
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button></form>""",
    )


def tell(title: str, text: str) -> str:
    """How it ended."""
    return _page(title, f"<p>{escape(text)}</p>")


def html(page: str, status: int = 200, *, goes_to: str = "") -> Response:
    """The page as an answer. `goes_to` is an origin that its form may lead to beside this server."""
    policy = (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self' {goes_to}; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    return Response(page, status_code=status, media_type="text/html", headers={**HEADERS, CSP: policy})


CSP = "Content-Security-Policy"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer to a person: codes and tickets are kept by nobody on the way and told to no other site."""


def _choice(choice: Choice, several: bool) -> str:
    org = escape(choice.org)
    options = "".join(
        f"<option{' selected' if name == 'default' else ''}>{escape(name)}</option>" for name in choice.projects
    )
    kind = 'type="checkbox" checked' if several else 'type="hidden"'
    return f"""<fieldset><legend>Organisation {org}, as {escape(choice.role)}</legend>
<label><input {kind} name="org" value="{org}"> Project <select name="project.{org}">{options}</select></label>
</fieldset>"""


def _hidden(fields: Mapping[str, str]) -> str:
    return "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(text)}">' for name, text in fields.items()
    )


def _problem(problem: str) -> str:
    return f'<p class="error" role="alert">{escape(problem)}</p>' if problem else ""


def _page(title: str, content: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{_STYLE}</style></head>
<body><main><h1>{escape(title)}</h1>{content}</main></body></html>
"""
