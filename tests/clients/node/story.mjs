// What tests/clients/test_client_node.py runs: the life of an App through the JavaScript client, told line by line.
// Arguments: where the client is, and the project. The kubeconfig comes from the environment.
const [clientPath, namespace] = process.argv.slice(2);
const k8s = await import(clientPath);
const config = new k8s.KubeConfig();
config.loadFromDefault();
const apps = config.makeApiClient(k8s.CustomObjectsApi);
const at = { group: "nodus.dev", version: "v1", namespace, plural: "apps" };
const tell = (...words) => console.log(words.join(" "));
const app = (name, spec = {}) => ({ apiVersion: "nodus.dev/v1", kind: "App", metadata: { name }, spec });

const made = await apps.createNamespacedCustomObject({ ...at, body: app("a") });
tell("created", made.metadata.name, made.metadata.generation);

// The informer lists, then watches from the version of its list.
const path = `/apis/nodus.dev/v1/namespaces/${namespace}/apps`;
const informer = k8s.makeInformer(config, path, () => apps.listNamespacedCustomObject(at));
const seen = [];
let wake = () => {};
let stopping = false;
for (const event of ["add", "update", "delete"]) {
  informer.on(event, (object) => {
    seen.push(`${event} ${object.metadata.name}`);
    wake();
  });
}
informer.on("error", (error) => {
  // Stopping aborts its request, which it tells as an error.
  if (stopping) return;
  console.error(error);
  process.exit(1);
});
const until = async (wanted) => {
  while (!seen.includes(wanted)) await new Promise((resolve) => (wake = resolve));
  tell("informed", wanted);
};
await informer.start();
await until("add a");

const headers = (type) => k8s.setHeaderOptions("Content-Type", type);
const patch = { ...at, name: "a", body: { spec: { description: "new" } } };
const patched = await apps.patchNamespacedCustomObject(patch, headers(k8s.PatchStrategy.MergePatch));
tell("patched", patched.spec.description);
await until("update a");

try {
  await apps.patchNamespacedCustomObject(patch, headers(k8s.PatchStrategy.StrategicMergePatch));
} catch (error) {
  tell("refused", error.code);
}
try {
  await apps.getNamespacedCustomObject({ ...at, name: "nope" });
} catch (error) {
  tell("refused", error.code, JSON.parse(error.body).reason);
}

const replaced = { ...patched, spec: { description: "newer" } };
const answer = await apps.replaceNamespacedCustomObject({ ...at, name: "a", body: replaced });
tell("replaced", answer.spec.description);
const listed = await apps.listNamespacedCustomObject({ ...at, limit: 10 });
tell("listed", listed.items.map((item) => item.metadata.name).join(","));
await apps.deleteNamespacedCustomObject({ ...at, name: "a" });
await until("delete a");
stopping = true;
await informer.stop();
const projects = await config.makeApiClient(k8s.CoreV1Api).listNamespace();
tell("namespaces", projects.items.some((item) => item.metadata.name === namespace));
process.exit(0);
