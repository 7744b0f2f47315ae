//! Export as traces of OpenTelemetry: OTLP's JSON, of which each operation is a trace and its steps are spans.
//!
//! Source: opentelemetry-proto `opentelemetry/proto/trace/v1/trace.proto` and OTLP's specification, "JSON Protobuf
//! Encoding": numbers of 64 bits are strings, and identifiers hexadecimal.

use serde_json::{Value, json};

use crate::{Outcome, Span};

/// Whose operations.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Resource {
    pub host: String,
    pub release: String,
}

/// An operation that has ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Operation {
    /// Of its daemon, which counts anew when it is started.
    pub id: u64,
    pub what: String,
    pub vm: String,
    pub uuid: String,
    /// The time 0 of all others, in nanoseconds since 1970.
    pub epoch_unix_ns: u64,
    pub started_ns: u64,
    pub ended_ns: u64,
    pub failure: Option<String>,
    /// Steps of the plan, of which some may never have begun.
    pub planned: u64,
    pub spans: Vec<Span>,
}

/// Of a text that somebody else has made.
const TEXT_CHARS_MAX: usize = 1024;

const KIND_INTERNAL: u8 = 1;
const STATUS_OK: u8 = 1;
const STATUS_ERROR: u8 = 2;

/// FNV-1a with 128 bits: the same operation has the same identifiers however often it is sent.
fn digest(parts: &[&[u8]]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
    bytes.fold(BASIS, |digest, byte| (digest ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// A trace and the spans in it.
struct Ids(u128);

impl Ids {
    fn of(resource: &Resource, operation: &Operation) -> Self {
        let numbers = [operation.id, operation.epoch_unix_ns, operation.started_ns];
        let numbers: Vec<u8> = numbers.iter().flat_map(|it| it.to_be_bytes()).collect();
        // No identifier is 0.
        Self(digest(&[resource.host.as_bytes(), operation.uuid.as_bytes(), &numbers]) | 1)
    }

    fn trace(&self) -> String {
        format!("{:032x}", self.0)
    }

    /// The operation itself has number 0.
    fn span(&self, number: usize) -> String {
        let digest = digest(&[&self.0.to_be_bytes(), &number.to_be_bytes()]);
        format!("{:016x}", (digest >> 64) & u128::from(u64::MAX) | 1)
    }
}

fn text(key: &str, value: &str) -> Value {
    let value: String = value.chars().take(TEXT_CHARS_MAX).collect();
    json!({ "key": key, "value": { "stringValue": value } })
}

fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn status(failure: Option<&str>) -> Value {
    match failure {
        None => json!({ "code": STATUS_OK }),
        Some(why) => {
            let why: String = why.chars().take(TEXT_CHARS_MAX).collect();
            json!({ "code": STATUS_ERROR, "message": why })
        }
    }
}

impl Operation {
    fn unix_ns(&self, at_ns: u64) -> String {
        self.epoch_unix_ns.saturating_add(at_ns).to_string()
    }

    fn root(&self, ids: &Ids) -> Value {
        let outcome = if self.failure.is_some() { "failed" } else { "done" };
        json!({
            "traceId": ids.trace(),
            "spanId": ids.span(0),
            "name": self.what,
            "kind": KIND_INTERNAL,
            "startTimeUnixNano": self.unix_ns(self.started_ns),
            "endTimeUnixNano": self.unix_ns(self.ended_ns.max(self.started_ns)),
            "attributes": [
                text("xylem.operation.kind", &self.what),
                number("xylem.operation.id", self.id),
                text("xylem.operation.outcome", outcome),
                number("xylem.operation.steps", self.planned),
                text("xylem.vm.uuid", &self.uuid),
                text("xylem.vm.name", &self.vm),
            ],
            "status": status(self.failure.as_deref()),
        })
    }

    /// It begins when the step could have: what it waited for is part of it.
    fn step(&self, ids: &Ids, index: usize, span: &Span) -> Value {
        let begins = span.ready_ns.min(span.start_ns);
        let mut attributes =
            vec![text("xylem.step", &span.name), number("xylem.step.waited_ns", span.waited_ns())];
        if let Some(what) = &span.waited_for {
            attributes.push(text("xylem.step.waited_for", what));
        }
        let mut events = Vec::new();
        if span.waited_ns() > 0 {
            events.push(json!({ "timeUnixNano": self.unix_ns(span.start_ns), "name": "begins" }));
        }
        let failure = (span.outcome == Outcome::Failed).then_some("the step has failed");
        json!({
            "traceId": ids.trace(),
            "spanId": ids.span(index + 1),
            "parentSpanId": ids.span(0),
            "name": span.kind,
            "kind": KIND_INTERNAL,
            "startTimeUnixNano": self.unix_ns(begins),
            "endTimeUnixNano": self.unix_ns(span.end_ns.max(span.start_ns)),
            "attributes": attributes,
            "events": events,
            "status": status(failure),
        })
    }
}

/// A request to export these (`ExportTraceServiceRequest`), as JSON.
#[must_use]
pub fn otlp(resource: &Resource, operations: &[Operation]) -> String {
    let mut spans = Vec::new();
    for operation in operations {
        let ids = Ids::of(resource, operation);
        spans.push(operation.root(&ids));
        let steps = operation.spans.iter().enumerate();
        spans.extend(steps.map(|(index, span)| operation.step(&ids, index, span)));
    }
    let request = json!({
        "resourceSpans": [{
            "resource": { "attributes": [
                text("service.name", "xylem"),
                text("service.version", &resource.release),
                text("host.name", &resource.host),
            ] },
            "scopeSpans": [{ "scope": { "name": "xylem.operations" }, "spans": spans }],
        }],
    });
    request.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn span(ready_ns: u64, outcome: Outcome) -> Span {
        Span {
            track: "web".to_owned(),
            name: "attach xvda".to_owned(),
            kind: "attach".to_owned(),
            ready_ns,
            start_ns: 20,
            end_ns: 50,
            waited_for: (ready_ns < 20).then(|| "a permit".to_owned()),
            outcome,
        }
    }

    fn operation(id: u64) -> Operation {
        Operation {
            id,
            what: "start".to_owned(),
            vm: "web".to_owned(),
            uuid: "u".to_owned(),
            epoch_unix_ns: 1_700_000_000_000_000_000,
            started_ns: 5,
            ended_ns: 60,
            failure: (id == 2).then(|| "x".repeat(5000)),
            planned: 3,
            spans: vec![span(20, Outcome::Ended), span(10, Outcome::Failed)],
        }
    }

    fn exported(operations: &[Operation]) -> Vec<Value> {
        let resource = Resource { host: "xen1".to_owned(), release: "1.2.3".to_owned() };
        let said: Value = serde_json::from_str(&otlp(&resource, operations)).unwrap();
        let of = &said["resourceSpans"][0];
        let host = json!({ "key": "host.name", "value": { "stringValue": "xen1" } });
        assert!(of["resource"]["attributes"].as_array().unwrap().contains(&host), "{said}");
        of["scopeSpans"][0]["spans"].as_array().unwrap().clone()
    }

    #[test]
    fn an_operation_is_a_trace_whose_root_has_the_steps() {
        let spans = exported(&[operation(1), operation(2)]);
        assert_eq!(spans.len(), 6);
        for trace in spans.chunks(3) {
            let (root, steps) = trace.split_first().unwrap();
            assert_eq!(root.get("parentSpanId"), None);
            assert_eq!(root["startTimeUnixNano"], "1700000000000000005");
            assert_eq!(root["endTimeUnixNano"], "1700000000000000060");
            for step in steps {
                assert_eq!(step["parentSpanId"], root["spanId"]);
                assert_eq!(step["traceId"], root["traceId"]);
            }
            assert_eq!(steps[0]["events"], json!([]));
            assert_eq!(steps[1]["startTimeUnixNano"], "1700000000000000010");
            let begins = json!([{ "timeUnixNano": "1700000000000000020", "name": "begins" }]);
            assert_eq!(steps[1]["events"], begins);
            let waited = json!({ "key": "xylem.step.waited_ns", "value": { "intValue": "10" } });
            assert!(steps[1]["attributes"].as_array().unwrap().contains(&waited), "{steps:?}");
            assert_eq!(
                (&steps[0]["status"]["code"], &steps[1]["status"]["code"]),
                (&1.into(), &2.into())
            );
        }
        assert_eq!(spans[0]["status"], json!({ "code": 1 }));
        assert_eq!(spans[3]["status"]["message"].as_str().map(str::len), Some(1024));
    }

    #[test]
    fn identifiers_are_those_of_an_operation_and_of_no_other() {
        let ids = |spans: &[Value]| -> Vec<(String, String)> {
            let text = |it: &Value| it.as_str().unwrap().to_owned();
            spans.iter().map(|it| (text(&it["traceId"]), text(&it["spanId"]))).collect()
        };
        let first = ids(&exported(&[operation(1)]));
        assert_eq!(first, ids(&exported(&[operation(1)])));
        assert!(first.iter().all(|(trace, span)| trace.len() == 32 && span.len() == 16));
        let later = Operation { epoch_unix_ns: 1_800_000_000_000_000_000, ..operation(1) };
        let all = exported(&[operation(1), operation(2), later]);
        let distinct: BTreeSet<_> = ids(&all).into_iter().collect();
        assert_eq!(distinct.len(), 9);
        assert_eq!(distinct.iter().map(|it| &it.0).collect::<BTreeSet<_>>().len(), 3);
    }
}
