//! The description of all this for tools (OpenAPI 3.1), made from the types that are sent.

mod named;
mod words;

use std::sync::OnceLock;

use api::{
    Answer, DeviceObject, DomainObject, HostObject, NetworkObject, ObjectChange, OperationObject,
    Reply, Request, SrRow, Trace, VdiRow, VmObject,
};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::health::Health;
use super::metrics::History;
use super::requests::ACTIONS;
use super::session::{LogIn, Session};

pub(crate) async fn document() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| build().to_string());
    let mut response = Response::new(Body::from(text.as_str()));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

struct Document {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
    /// Schemas that no type has.
    own: Map<String, Value>,
}

/// The whole document.
pub(crate) fn build() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|it| {
        it.definitions_path = "/components/schemas".into();
        it.meta_schema = None;
    });
    let (paths, own) = (Map::new(), Map::new());
    let mut document = Document { schemas: settings.into_generator(), paths, own };
    document.add_answers();
    document.add_objects();
    document.add_actions();
    document.add_consoles();
    document.add_requests();
    document.add_reports();
    document.add_tasks();
    document.add_sessions();
    document.add_numbers();
    let Document { mut schemas, mut paths, own } = document;
    let mut components: Map<String, Value> = schemas.take_definitions(true);
    components.extend(own);
    named::name_all(&mut components);
    components.values_mut().chain(paths.values_mut()).for_each(words::make_plain);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Xylem",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A control plane for Xen hosts.",
            "description": DESCRIPTION,
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, { "session": [] }],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "session": { "type": "apiKey", "in": "cookie", "name": crate::admit::COOKIE },
            },
        },
    })
}

const DESCRIPTION: &str = "Objects are read from a copy of the host's state, which follows it within a fraction of a second; \
    the rest is asked of xylemd. Errors are application/problem+json, and their detail is what xy would print. \
    A request with Accept: application/x-ndjson is answered by the daemon's lines as they come, of which the last is ok or error. \
    Who logs in by a cookie sends the header Xylem-Request with everything but GET.";

const PIECES: &str = "In pieces: a place (8 bytes, little endian), a count (4 bytes) of up to 1 MiB, and so many bytes. A piece of \
    none ends, and its place is the disk's size when it is read. What is in no piece is zeros, or stays as it was.";

fn parameter(place: &str, name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": { "type": "string" },
    })
}

fn list_parameters() -> Vec<Value> {
    let mut limit = parameter("query", "limit", "So many at most.");
    limit["schema"] = json!({ "type": "integer", "minimum": 1 });
    vec![
        parameter("query", "fields", "Only these, with commas between them."),
        limit,
        parameter(
            "query",
            "after",
            "Those after the one with this key: the header Xylem-Next of the last answer.",
        ),
        parameter(
            "header",
            "If-None-Match",
            "The ETag of an earlier answer: 304 if nothing has changed.",
        ),
    ]
}

/// Of a call for one object, with what names it.
fn of_one(name: Option<Value>) -> Vec<Value> {
    let lists = list_parameters();
    let same = lists.into_iter().filter(|it| it["name"] == "fields" || it["in"] == "header");
    name.into_iter().chain(same).collect()
}

fn change_parameters() -> Vec<Value> {
    vec![
        parameter(
            "query",
            "class",
            "Objects of these classes: domain, vm, device, operation, sr, network, host.",
        ),
        parameter("query", "since", "The cursor of an earlier answer."),
    ]
}

const REQUEST_HEADERS: [(&str, &str); 2] = [
    (
        "Idempotency-Key",
        "A request that is sent again with its key is answered and not done again, for a day.",
    ),
    ("Prefer", "respond-async: answered at once by a task."),
];

fn request_parameters() -> Vec<Value> {
    REQUEST_HEADERS.map(|(name, what)| parameter("header", name, what)).to_vec()
}

/// A schema by its name.
fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

impl Document {
    /// What requests are answered by.
    fn add_answers(&mut self) {
        let reply = self.schema::<Reply>();
        let progress = self.schema::<api::Progress>();
        let text = json!({ "type": "string" });
        let answers = [
            (
                "Problem",
                &["type", "title", "status", "detail"][..],
                json!({
                    "type": text,
                    "title": text,
                    "status": { "type": "integer" },
                    "detail": { "type": "string", "description": "What is wrong, and with what." },
                }),
            ),
            ("Done", &["ok"][..], json!({ "ok": reply })),
            (
                "Started",
                &["task"][..],
                json!({ "task": { "type": "string", "description": "Where the task is." } }),
            ),
            (
                "Task",
                &["id", "what", "who", "started_unix_ms", "status"][..],
                json!({
                    "id": text,
                    "what": { "type": "string", "description": "The request, such as create." },
                    "who": text,
                    "started_unix_ms": { "type": "integer" },
                    "ended_unix_ms": { "type": ["integer", "null"] },
                    "status": { "type": "string", "enum": ["pending", "success", "failure", "cancelled"] },
                    "progress": { "anyOf": [progress, { "type": "null" }] },
                    "result": { "anyOf": [reply, { "type": "null" }] },
                    "detail": { "type": ["string", "null"], "description": "Why it failed." },
                }),
            ),
        ];
        for (name, required, properties) in answers {
            let schema =
                json!({ "type": "object", "required": required, "properties": properties });
            self.own.insert(name.to_owned(), schema);
        }
    }

    /// Of a request: when it is done, and when it is to go on as a task.
    fn responses(&mut self) -> Value {
        let line = self.schema::<Answer>();
        json!({
            "200": {
                "description": "Done.",
                "content": {
                    "application/json": { "schema": named("Done") },
                    "application/x-ndjson": { "schema": line },
                },
            },
            "202": {
                "description": "In progress, as a task.",
                "headers": { "Location": { "schema": { "type": "string" } } },
                "content": { "application/json": { "schema": named("Started") } },
            },
        })
    }

    fn schema<T: JsonSchema>(&mut self) -> Schema {
        self.schemas.subschema_for::<T>()
    }

    /// A call and its answer; all calls have the same errors.
    fn add(&mut self, method: &str, path: &str, mut call: Value, answer: Option<Value>) {
        let mut responses = match (answer, call.get("responses")) {
            (_, Some(own)) => own.clone(),
            (Some(schema), None) => json!({
                "200": { "description": "Done.", "content": { "application/json": { "schema": schema } } },
            }),
            (None, None) => json!({ "204": { "description": "Done." } }),
        };
        responses["default"] = json!({
            "description": "It was not done.",
            "content": {
                "application/problem+json": { "schema": named("Problem") },
            },
        });
        call["responses"] = responses;
        let id: Vec<_> =
            path.split(['/', '{', '}', '.']).filter(|it| !matches!(*it, "" | "v1")).collect();
        call["operationId"] = json!(format!("{method}-{}", id.join("-")));
        call["tags"] = json!([id[0]]);
        let place = self.paths.entry(path).or_insert_with(|| json!({}));
        place[method] = call;
    }

    fn add_objects(&mut self) {
        let vm = parameter("path", "vm", "A VM's UUID, name or domid.");
        let lists: [(&str, &str, Schema); 6] = [
            ("/v1/vms", "All VMs, defined or running.", self.schema::<VmObject>()),
            ("/v1/domains", "Domains of other toolstacks.", self.schema::<DomainObject>()),
            ("/v1/srs", "All SRs.", self.schema::<SrRow>()),
            ("/v1/vdis", "The VDIs of all SRs.", self.schema::<VdiRow>()),
            (
                "/v1/networks",
                "Networks that the host has, or that VMs are to be on.",
                self.schema::<NetworkObject>(),
            ),
            (
                "/v1/operations",
                "Operations in progress, and the last that have ended.",
                self.schema::<OperationObject>(),
            ),
        ];
        for (path, summary, of) in lists {
            let call = json!({ "summary": summary, "parameters": list_parameters() });
            self.add("get", path, call, Some(json!({ "type": "array", "items": of })));
        }
        let one = self.schema::<VmObject>();
        let call = json!({ "summary": "A VM.", "parameters": [vm] });
        self.add("get", "/v1/vms/{vm}", call, Some(json!(one)));
        let devices = self.schema::<DeviceObject>();
        let call = json!({ "summary": "A VM's devices.", "parameters": [vm] });
        let answer = json!({ "type": "array", "items": devices });
        self.add("get", "/v1/vms/{vm}/devices", call, Some(answer));
        let host = self.schema::<HostObject>();
        let call = json!({
            "summary": "The host.",
            "description": "Looked at every few seconds.",
            "parameters": of_one(None),
        });
        self.add("get", "/v1/host", call, Some(json!(host)));
        let vdi = parameter("path", "vdi", "SR:VDI.");
        let one = self.schema::<VdiRow>();
        let call = json!({
            "summary": "A VDI.",
            "description": "SRs are read every minute, and after each change made by this host.",
            "parameters": of_one(Some(vdi)),
        });
        self.add("get", "/v1/vdis/{vdi}", call, Some(json!(one)));
        let network = parameter("path", "network", "A network's name.");
        let one = self.schema::<NetworkObject>();
        let call = json!({ "summary": "A network.", "parameters": of_one(Some(network.clone())) });
        self.add("get", "/v1/networks/{network}", call, Some(json!(one)));
        let interfaces = self.schema::<DeviceObject>();
        let call = json!({
            "summary": "The interfaces of VMs that are to be on a network.",
            "parameters": [network],
        });
        let answer = json!({ "type": "array", "items": interfaces });
        self.add("get", "/v1/networks/{network}/interfaces", call, Some(answer));
        self.add_changes();
    }

    fn add_changes(&mut self) {
        let trace = self.schema::<Trace>();
        let call = json!({
            "summary": "An operation, and where its time goes.",
            "parameters": [parameter("path", "id", "Its number.")],
        });
        self.add("get", "/v1/operations/{id}", call, Some(json!(trace)));
        let change = self.schema::<ObjectChange>();
        let call = json!({
            "summary": "What has changed since a cursor; without one, all.",
            "parameters": change_parameters(),
        });
        let answer = json!({
            "type": "object",
            "required": ["cursor", "is_last", "starts_again", "changes"],
            "properties": {
                "cursor": { "type": "string" },
                "is_last": { "type": "boolean" },
                "starts_again": { "type": "boolean" },
                "changes": { "type": "array", "items": change },
            },
        });
        self.add("get", "/v1/objects", call, Some(answer));
        let call = json!({
            "summary": "Changes as they happen.",
            "description": "Server-sent events: reset (forget all that is known), change (an object as it is now, or null), \
                more and current (with the cursor as id; after current all is known), offline and online (whether xylemd \
                answers). A client that connects again sends Last-Event-ID.",
            "parameters": change_parameters(),
            "responses": {
                "200": { "description": "Events.", "content": { "text/event-stream": { "schema": { "type": "string" } } } },
            },
        });
        self.add("get", "/v1/events", call, None);
    }

    fn add_actions(&mut self) {
        let mut parameters = request_parameters();
        parameters.push(parameter("path", "vm", "A VM's UUID, name or domid."));
        let mut action = parameter("path", "action", "What to do.");
        action["schema"] = json!({ "type": "string", "enum": ACTIONS });
        parameters.push(action);
        let wait = self.schema::<api::Wait>();
        let body = json!({
            "type": "object",
            "properties": {
                "paused": { "type": "boolean", "description": "Of start: leave it paused." },
                "wait": wait,
                "acpi": { "type": "boolean", "description": "Of shutdown and reboot: an ACPI event for guests without PV drivers." },
            },
            "additionalProperties": false,
        });
        let call = json!({
            "summary": "Does something with a VM.",
            "parameters": parameters,
            "requestBody": { "content": { "application/json": { "schema": body } } },
            "responses": self.responses(),
        });
        self.add("post", "/v1/vms/{vm}/{action}", call, None);
    }

    fn add_consoles(&mut self) {
        let vm = parameter("path", "vm", "A VM's UUID, name or domid.");
        let mut kind = parameter("query", "kind", "Of which; without it the primary one.");
        kind["schema"] = json!({ "type": "string", "enum": ["pv", "serial"] });
        let mut number = parameter("query", "number", "Its number; 0 without it.");
        number["schema"] = json!({ "type": "integer", "minimum": 0 });
        let responses = json!({ "101": { "description": "Bytes both ways, in binary messages." } });
        for (path, summary, parameters) in [
            (
                "/v1/vms/{vm}/console",
                "A VM's console: a WebSocket, with what a terminal shows and what is typed there.",
                json!([vm, kind, number]),
            ),
            (
                "/v1/vms/{vm}/screen",
                "A VM's screen: a WebSocket, with RFB as VNC viewers speak it.",
                json!([vm]),
            ),
        ] {
            let description = "For admins. The subprotocol `binary` is accepted. From a browser with a session, Origin has \
                to be this server. A client that answers no ping for a minute is hung up on.";
            let call = json!({
                "summary": summary,
                "description": description,
                "parameters": parameters,
                "responses": responses,
            });
            self.add("get", path, call, None);
        }
    }

    /// A call for each request of the local protocol.
    fn add_requests(&mut self) {
        let request = self.schemas.root_schema_for::<Request>();
        let kinds = request.get("oneOf").and_then(Value::as_array).cloned().unwrap_or_default();
        for kind in kinds {
            let Some(op) = kind.pointer("/properties/op/const").and_then(Value::as_str) else {
                continue;
            };
            let path = format!("/v1/requests/{op}");
            let description = kind.get("description").cloned().unwrap_or_default();
            let call = json!({
                "summary": format!("As on the host: {op}."),
                "description": description,
                "parameters": request_parameters(),
                "requestBody": { "content": { "application/json": { "schema": without_op(kind) } } },
                "responses": self.responses(),
            });
            self.add("post", &path, call, None);
        }
    }

    fn add_reports(&mut self) {
        let finding = json!({
            "type": "object",
            "required": ["level", "about", "text", "advice"],
            "properties": {
                "level": { "enum": ["ok", "warning", "problem"] },
                "about": { "type": "string" },
                "text": { "type": "string" },
                "advice": { "type": "string", "description": "What to do; empty if there is nothing to do." },
            },
        });
        let call = json!({ "summary": "What of the host is not as it should be." });
        self.add("get", "/v1/doctor", call, Some(json!({ "type": "array", "items": finding })));
        let call = json!({
            "summary": "Versions, states and logs of the host, without passwords. For admins.",
            "responses": {
                "200": {
                    "description": "A tar file.",
                    "content": { "application/x-tar": { "schema": { "type": "string", "format": "binary" } } },
                },
            },
        });
        self.add("get", "/v1/bugreport", call, None);
        let vdi = parameter("path", "vdi", "SR:VDI, which nobody uses.");
        let pieces = json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } });
        let call = json!({
            "summary": "A disk's bytes. For admins.",
            "description": PIECES,
            "parameters": [vdi],
            "responses": { "200": { "description": "Pieces.", "content": pieces } },
        });
        self.add("get", "/v1/vdis/{vdi}/data", call, None);
        let call = json!({
            "summary": "Writes to a disk. For admins.",
            "description": format!("{PIECES} With Expect: 100-continue a refusal comes before anything is sent."),
            "parameters": [vdi],
            "requestBody": { "required": true, "content": pieces },
        });
        let done = json!({ "type": "object", "required": ["ok"], "properties": { "ok": { "type": "string" } } });
        self.add("put", "/v1/vdis/{vdi}/data", call, Some(done));
    }

    fn add_tasks(&mut self) {
        let task = named("Task");
        let call = json!({ "summary": "Tasks of this client; for an admin, of all." });
        self.add("get", "/v1/tasks", call, Some(json!({ "type": "array", "items": task })));
        let parameters = json!([parameter("path", "id", "The task's number.")]);
        let call = json!({ "summary": "A task.", "parameters": parameters });
        self.add("get", "/v1/tasks/{id}", call, Some(task));
        let call =
            json!({ "summary": "Cancels a task, as far as it can be.", "parameters": parameters });
        self.add("delete", "/v1/tasks/{id}", call, None);
    }

    fn add_sessions(&mut self) {
        let health = self.schema::<Health>();
        let call = json!({ "summary": "Whether xylemd answers. Needs no log-in.", "security": [] });
        self.add("get", "/v1/health", call, Some(json!(health)));
        let session = self.schema::<Session>();
        let call = json!({ "summary": "Who one is, and one's role." });
        self.add("get", "/v1/session", call, Some(json!(session)));
        let log_in = self.schema::<LogIn>();
        let call = json!({
            "summary": "Logs a browser in: the answer sets a cookie.",
            "security": [],
            "requestBody": { "required": true, "content": { "application/json": { "schema": log_in } } },
        });
        self.add("post", "/v1/session", call, Some(json!(session)));
        let call = json!({
            "summary": "Sends a browser to the provider of OpenID Connect, if health says that there is one.",
            "security": [],
            "responses": { "303": { "description": "The provider's page, from which it comes back logged in." } },
        });
        self.add("get", "/v1/session/oidc", call, None);
        let call = json!({ "summary": "Logs a browser out." });
        self.add("delete", "/v1/session", call, None);
        let call = json!({ "summary": "This document.", "security": [] });
        self.add("get", "/v1/openapi.json", call, Some(json!({ "type": "object" })));
    }
}

impl Document {
    fn add_numbers(&mut self) {
        let history = self.schema::<History>();
        let call = json!({
            "summary": "What the host or a VM did, as averages over steps.",
            "parameters": [
                parameter("query", "of", "host, or a VM's UUID, name or domid."),
                parameter("query", "from", "Seconds since 1970; without it, as far back as is known."),
                parameter("query", "step", "5, 60, 3600 or 86400 seconds: each reaches further back."),
            ],
        });
        self.add("get", "/v1/history", call, Some(json!(history)));
        let text = |kind: &str| json!({ kind: { "schema": { "type": "string" } } });
        let call = json!({
            "summary": "Numbers for Prometheus, of the last five seconds.",
            "description": "In the older text format if only text/plain is accepted.",
            "responses": {
                "200": { "description": "OpenMetrics.", "content": text("application/openmetrics-text") },
            },
        });
        self.add("get", "/metrics", call, None);
        let call = json!({
            "summary": "The history as XAPI has it, with --xenapi.",
            "description": "For who has a session of XenAPI, a password (basic) or a token. In XML without json.",
            "parameters": [
                parameter("query", "session_id", "Of XenAPI."),
                parameter("query", "start", "Seconds since 1970; if negative, so many ago."),
                parameter("query", "interval", "Of the averages, in seconds."),
                parameter("query", "cf", "AVERAGE."),
                parameter("query", "host", "true: also the host."),
                parameter("query", "vm_uuid", "This VM alone."),
                parameter("query", "json", "true: as JSON."),
            ],
            "responses": {
                "200": { "description": "Rows, the newest first.", "content": text("application/json") },
            },
        });
        self.add("get", "/rrd_updates", call, None);
    }
}

/// The schema of a request's fields: its name is in the path.
fn without_op(mut kind: Value) -> Value {
    if let Some(object) = kind.as_object_mut() {
        object.remove("description");
        if let Some(Value::Object(properties)) = object.get_mut("properties") {
            properties.remove("op");
        }
        if let Some(Value::Array(required)) = object.get_mut("required") {
            required.retain(|it| it != "op");
        }
        object.retain(|name, it| {
            name != "required" || it.as_array().is_some_and(|it| !it.is_empty())
        });
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(of: &Value, found: &mut Vec<String>) {
        match of {
            Value::Object(map) => {
                if let Some(Value::String(to)) = map.get("$ref") {
                    found.push(to.clone());
                }
                map.values().for_each(|it| references(it, found));
            }
            Value::Array(all) => all.iter().for_each(|it| references(it, found)),
            _ => {}
        }
    }

    #[test]
    fn each_request_is_described_and_nothing_is_referred_to_that_is_not_there() {
        let document = build();
        let paths = document["paths"].as_object().unwrap();
        for op in ["list", "start", "create", "storage", "checkpoint", "host", "wait-for", "limits"]
        {
            let call = &paths[&format!("/v1/requests/{op}")]["post"];
            let body = &call["requestBody"]["content"]["application/json"]["schema"];
            assert!(body.pointer("/properties/op").is_none(), "{op}: {body}");
        }
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100, "{}", found.len());
        for to in found {
            let place = to.strip_prefix('#').unwrap_or_else(|| panic!("{to}"));
            assert!(document.pointer(place).is_some(), "{to}");
        }
        let ids = paths.values().flat_map(|it| it.as_object().unwrap().values());
        let mut ids: Vec<_> = ids.map(|it| it["operationId"].as_str().unwrap()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "each call has a name of its own");
    }
}
