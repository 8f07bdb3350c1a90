"""Label and field selectors: their grammar, and the one meaning they have.

`labelSelector` and `fieldSelector` of lists, watches and collection deletes are parsed here into terms that must all
hold. `matches` says what a term means; watchers use it, and `store/selection.py` compiles the same terms to SQL, which
a property test holds to `matches`. A field that an object does not have counts as the empty string, as in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Kind

SELECTOR_CHARACTERS_MAX = 16_384
"""As long as a query may be on its way through proxies."""
TERMS_MAX = 100
"""Each is a condition of the query and is asked of every change that a watcher sees."""
VALUES_MAX = 1_000
"""As many as a batch has calls."""

METADATA_FIELDS = ("metadata.name", "metadata.namespace")
"""Fields that every kind can be selected by."""

_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|=|!|\(|\)|,)|(?P<word>[^\s=!(),<>]+)|(?P<other>\S))")


class LabelOperator(Enum):
    """The operators of label selectors."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    NOT_EXISTS = "!"


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """One requirement of a label selector; `=` is IN with one value, `!=` NOT_IN (which matches an absent key)."""

    key: str
    operator: LabelOperator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One term of a field selector: path, whether it must be equal or unequal, value."""

    path: str
    equal: bool
    value: str


def matches(
    label_terms: Iterable[LabelTerm],
    field_terms: Iterable[FieldTerm],
    *,
    labels: Mapping[str, str],
    fields: Mapping[str, str],
    name: str,
    namespace: str,
) -> bool:
    """Whether an object with these labels and selectable fields satisfies every term."""
    return matches_labels(label_terms, labels) and matches_fields(field_terms, fields, name=name, namespace=namespace)


def matches_labels(terms: Iterable[LabelTerm], labels: Mapping[str, str]) -> bool:
    """Whether the labels satisfy every term. NOT_IN holds for an object without the key."""
    return all(_holds(term, labels.get(term.key)) for term in terms)


def _holds(term: LabelTerm, value: str | None) -> bool:
    match term.operator:
        case LabelOperator.IN:
            return value is not None and value in term.values
        case LabelOperator.NOT_IN:
            return value is None or value not in term.values
        case LabelOperator.EXISTS:
            return value is not None
        case LabelOperator.NOT_EXISTS:
            return value is None


def matches_fields(terms: Iterable[FieldTerm], fields: Mapping[str, str], *, name: str, namespace: str) -> bool:
    """Whether the fields satisfy every term; `fields` holds the kind's own, name and namespace come apart."""
    for term in terms:
        if term.path == "metadata.name":
            value = name
        elif term.path == "metadata.namespace":
            value = namespace
        else:
            value = fields.get(term.path, "")
        if (value == term.value) is not term.equal:
            return False
    return True


def parse_labels(text: str) -> tuple[LabelTerm, ...]:
    """The terms of a label selector such as `app=a,tier in (web,db),!legacy`; `BadRequest` when it cannot be read."""
    tokens = _Tokens(text)
    terms: list[LabelTerm] = []
    while not tokens.ended():
        if terms:
            tokens.expect(",")
        terms.append(_label_term(tokens))
        if len(terms) > TERMS_MAX:
            raise tokens.refusal(f"must have at most {TERMS_MAX} requirements")
    return tuple(terms)


def parse_fields(text: str, kind: Kind) -> tuple[FieldTerm, ...]:
    """The terms of a field selector such as `status.phase!=Failed`; `BadRequest` for a field that the kind lacks."""
    _check_size(text)
    terms: list[FieldTerm] = []
    for piece in _split_unescaped(text):
        if not piece:
            continue
        terms.append(_field_term(piece, text, kind))
        if len(terms) > TERMS_MAX:
            raise _unreadable(text, f"must have at most {TERMS_MAX} requirements")
    return tuple(terms)


def by_labels(
    kind: Kind, label_terms: tuple[LabelTerm, ...], field_terms: tuple[FieldTerm, ...]
) -> tuple[tuple[LabelTerm, ...], tuple[FieldTerm, ...]]:
    """The same selection, with labels in place of the fields that the server repeats as labels (`labelled_fields`)."""
    moved = {
        term: LabelTerm(kind.labelled_fields[term.path], LabelOperator.IN, (term.value,))
        for term in field_terms
        # No other value can be a label's; an object without the field has no label either.
        if term.equal and term.path in kind.labelled_fields and len(term.value) <= 63 and _NAME.match(term.value)
    }
    return (*label_terms, *moved.values()), tuple(term for term in field_terms if term not in moved)


def _label_term(tokens: _Tokens) -> LabelTerm:
    if tokens.take("!"):
        return LabelTerm(tokens.key(), LabelOperator.NOT_EXISTS)
    key = tokens.key()
    if tokens.take("=") or tokens.take("=="):
        return LabelTerm(key, LabelOperator.IN, (tokens.value(),))
    if tokens.take("!="):
        return LabelTerm(key, LabelOperator.NOT_IN, (tokens.value(),))
    if tokens.take_word("in"):
        return LabelTerm(key, LabelOperator.IN, tokens.values())
    if tokens.take_word("notin"):
        return LabelTerm(key, LabelOperator.NOT_IN, tokens.values())
    if tokens.ended() or tokens.sees(","):
        return LabelTerm(key, LabelOperator.EXISTS)
    raise tokens.refusal(f"expected one of =, ==, !=, in, notin after {key!r}, found {tokens.shown()}")


class _Tokens:
    """A cursor over the tokens of a label selector; `in` and `notin` are words, because keys may be spelt so too."""

    def __init__(self, text: str) -> None:
        _check_size(text)
        self._text = text
        self._at = 0
        self._found: list[tuple[str, bool]] = []
        for match in _TOKEN.finditer(text):
            if match["other"] is not None:
                raise self.refusal(f"{match['other']!r} is not supported; use =, ==, !=, in, notin, key or !key")
            word = match["word"]
            self._found.append((word, True) if word is not None else (match["symbol"], False))

    def ended(self) -> bool:
        return self._at == len(self._found)

    def sees(self, symbol: str) -> bool:
        return not self.ended() and self._found[self._at] == (symbol, False)

    def take(self, symbol: str) -> bool:
        return self._take(symbol, word=False)

    def take_word(self, word: str) -> bool:
        return self._take(word, word=True)

    def _take(self, text: str, *, word: bool) -> bool:
        if self.ended() or self._found[self._at] != (text, word):
            return False
        self._at += 1
        return True

    def expect(self, symbol: str) -> None:
        if not self.take(symbol):
            raise self.refusal(f"expected {symbol!r}, found {self.shown()}")

    def key(self) -> str:
        """The next word, which must be a label key."""
        word = self._word()
        if word is None:
            raise self.refusal(f"expected a label key, found {self.shown()}")
        prefix, slash, name = word.rpartition("/")
        if slash and (len(prefix) > 253 or not _PREFIX.match(prefix)):
            raise self.refusal(f"the prefix of the key {word!r} must be a DNS name")
        if len(name) > 63 or not _NAME.match(name):
            raise self.refusal(f"the key {word!r} must be a name of at most 63 letters, digits, '-', '_' or '.'")
        return word

    def value(self) -> str:
        """The next word, or the empty value when a comma, a parenthesis or the end stands there."""
        word = self._word()
        if word is None:
            if self.ended() or self.sees(",") or self.sees(")"):
                return ""
            raise self.refusal(f"expected a value, found {self.shown()}")
        if len(word) > 63 or not _NAME.match(word):
            raise self.refusal(f"the value {word!r} must be at most 63 letters, digits, '-', '_' or '.'")
        return word

    def values(self) -> tuple[str, ...]:
        """A parenthesised, comma-separated set of values: sorted and without repeats."""
        self.expect("(")
        found = [self.value()]
        while self.take(","):
            found.append(self.value())
            if len(found) > VALUES_MAX:
                raise self.refusal(f"must list at most {VALUES_MAX} values")
        self.expect(")")
        return tuple(sorted(set(found)))

    def _word(self) -> str | None:
        if self.ended() or not self._found[self._at][1]:
            return None
        self._at += 1
        return self._found[self._at - 1][0]

    def shown(self) -> str:
        """The next token as an error message shows it."""
        return "the end" if self.ended() else repr(self._found[self._at][0])

    def refusal(self, problem: str) -> ApiError:
        return _unreadable(self._text, problem)


def _split_unescaped(text: str) -> list[str]:
    """`text` cut at commas that no backslash escapes; escapes stay in the pieces."""
    pieces = [""]
    escaped = False
    for character in text:
        if character == "," and not escaped:
            pieces.append("")
            continue
        escaped = character == "\\" and not escaped
        pieces[-1] += character
    return pieces


def _field_term(piece: str, text: str, kind: Kind) -> FieldTerm:
    found = re.match(r"\s*([^=!\\\s]+)\s*(!=|==|=)", piece)
    if found is None:
        raise _unreadable(text, f"{piece!r} must be a field, one of =, == or !=, and a value")
    path, operator = found[1], found[2]
    if path not in METADATA_FIELDS and path not in kind.selectable_fields:
        offered = ", ".join((*METADATA_FIELDS, *kind.selectable_fields))
        raise ApiError(
            Reason.BAD_REQUEST,
            f"field label not supported: {path}",
            fix=f"Select {kind.plural} by one of: {offered}.",
        )
    return FieldTerm(path, operator != "!=", _unescaped(piece[found.end() :], text))


def _unescaped(value: str, text: str) -> str:
    r"""The value with `\\`, `\,` and `\=` resolved; a bare `=` or another escape makes the selector unreadable."""
    resolved = ""
    characters = iter(value)
    for character in characters:
        if character == "\\":
            character = next(characters, "")
            if character not in ("\\", ",", "="):
                raise _unreadable(text, "a backslash must be followed by a backslash, a comma or an equals sign")
        elif character == "=":
            raise _unreadable(text, "an equals sign inside a value must be escaped with a backslash")
        resolved += character
    return resolved


def _check_size(text: str) -> None:
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise _unreadable(f"{text[:40]}…", f"must be at most {SELECTOR_CHARACTERS_MAX} characters")


def _unreadable(text: str, problem: str) -> ApiError:
    return ApiError(Reason.BAD_REQUEST, f"unable to parse the selector {text!r}: {problem}")
