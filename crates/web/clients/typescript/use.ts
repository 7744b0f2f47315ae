// Uses the types that openapi-typescript has made from /v1/openapi.json, by openapi-fetch (docs/remote.md).
//
// Usage: node build/use.js URL TOKEN VM
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/xylem.js";

const [url, token, name] = process.argv.slice(2) as [string, string, string];
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
const json = "application/json" as const;

function check(what: string, holds: boolean): asserts holds {
  if (!holds) {
    console.error(`use.ts: not so: ${what}`);
    process.exit(1);
  }
  console.log(`ok: ${what}`);
}

type Action = paths["/v1/vms/{vm}/{action}"]["post"]["parameters"]["path"]["action"];
const act = (action: Action) =>
  client.POST("/v1/vms/{vm}/{action}", {
    params: { path: { vm: name, action }, header: { "Idempotency-Key": `${action}-${Date.now()}` } },
    body: {},
  });
const state = async () =>
  (await client.GET("/v1/vms/{vm}", { params: { path: { vm: name } } })).data?.state;

const all = await client.GET("/v1/vms", { params: { query: { fields: "name,state" } } });
check("all VMs are listed", all.data?.some((vm) => vm.name === name) ?? false);
check("a VM is started", (await act("start")).data !== undefined);
check("it runs", (await state()) === "running");

const listed = await client.POST("/v1/requests/list", { body: {} });
const reply = listed.data && "ok" in listed.data ? listed.data.ok : undefined;
const rows: components["schemas"]["DomainRow"][] =
  typeof reply === "object" && "domains" in reply ? reply.domains : [];
check("it is in xy's list", rows.some((row) => row.name === name));

const refused = await act("start");
check("what makes no sense is refused", refused.error?.status === 409 && refused.error.detail !== "");

const task = await client.POST("/v1/vms/{vm}/{action}", {
  params: { path: { vm: name, action: "destroy" }, header: { Prefer: "respond-async" } },
  body: {},
});
const place = task.data && "task" in task.data ? task.data.task : undefined;
check("a task is begun", place !== undefined);
let seen: components["schemas"]["Task"] | undefined;
for (let round = 0; round < 100 && seen?.status !== "success"; round++) {
  const id = place.split("/").pop()!;
  seen = (await client.GET("/v1/tasks/{id}", { params: { path: { id } } })).data;
  await new Promise((done) => setTimeout(done, 100));
}
check("it ends the VM", seen?.status === "success");

// Changes as they happen are no JSON: the client gives the answer's body.
const ended = new AbortController();
const events = await client.GET("/v1/events", {
  params: { query: { class: "vm" } },
  headers: { Accept: "text/event-stream" },
  parseAs: "stream",
  signal: ended.signal,
});
const reader = (events.data as unknown as ReadableStream<Uint8Array>).getReader();
let text = "";
while (!text.includes("event: current")) {
  text += new TextDecoder().decode((await reader.read()).value);
}
check("events follow", text.startsWith("event: reset") && text.includes("event: change"));
ended.abort();
