//! Ports of Open vSwitch, by its database.
//!
//! A port and its interface are rows that somebody refers to: a row that nobody refers to is gone with the transaction. The
//! switch has taken note of a change when its `cur_cfg` is what `next_cfg` was made.
//! Sources: RFC 7047, ovs-vswitchd.conf.db(5).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use storage::HostError;

use xen::{DomId, Uuid};

use super::{PortOwner, SwitchPort};

const DATABASE: &str = "Open_vSwitch";
/// An external ID of our ports: the domain and its VM.
const OWNER: &str = "xylem-domain";

/// A request with these operations, which are one transaction.
fn transact(operations: &[Value]) -> String {
    let mut params = vec![json!(DATABASE)];
    params.extend_from_slice(operations);
    json!({ "method": "transact", "params": params, "id": 1 }).to_string()
}

/// The results of the operations.
fn results(answer: &str) -> Result<Vec<Value>, HostError> {
    let refused = |what: &dyn std::fmt::Display| {
        Err(HostError::Refused(format!("Open vSwitch's database: {what}")))
    };
    let answer: Value = match serde_json::from_str(answer) {
        Ok(answer) => answer,
        Err(error) => return refused(&error),
    };
    if let Some(error) = answer.get("error").filter(|it| !it.is_null()) {
        return refused(error);
    }
    let Some(Value::Array(results)) = answer.get("result") else {
        return refused(&"an answer without a result");
    };
    // An error of the transaction as a whole comes after the results of its operations.
    for result in results {
        if let Some(error) = result.get("error").and_then(Value::as_str) {
            let details = result.get("details").and_then(Value::as_str).unwrap_or(error);
            return refused(&details);
        }
    }
    Ok(results.clone())
}

/// The rows that a `select` found.
fn rows(results: &[Value], index: usize) -> Vec<Value> {
    let rows = results.get(index).and_then(|it| it.get("rows")).and_then(Value::as_array);
    rows.cloned().unwrap_or_default()
}

fn select(table: &str, name: &str, columns: &[&str]) -> Value {
    json!({ "op": "select", "table": table, "where": [["name", "==", name]], "columns": columns })
}

/// Has the switch take note, and tells the number by which it does.
fn notice() -> [Value; 2] {
    [
        json!({ "op": "mutate", "table": DATABASE, "where": [], "mutations": [["next_cfg", "+=", 1]] }),
        json!({ "op": "select", "table": DATABASE, "where": [], "columns": ["next_cfg"] }),
    ]
}

/// Asks for a bridge and for ports of this name.
pub(super) fn look(bridge: &str, port: &str) -> String {
    transact(&[select("Bridge", bridge, &["_uuid"]), select("Port", port, &["_uuid"])])
}

/// Asks for all bridges, and for all ports but ours.
pub(super) fn look_at_all() -> String {
    let others = json!(["other_config", "excludes", ["map", [["transient", "true"]]]]);
    transact(&[
        json!({ "op": "select", "table": "Bridge", "where": [], "columns": ["name", "ports"] }),
        json!({ "op": "select", "table": "Port", "where": [others], "columns": ["_uuid", "name"] }),
    ])
}

/// The bridges, and those of their ports that are not ours.
pub(super) fn all(answer: &str) -> Result<BTreeMap<String, Vec<String>>, HostError> {
    let results = results(answer)?;
    let name = |row: &Value| row.get("name")?.as_str().map(str::to_owned);
    let id = |pair: &Value| pair.get(1)?.as_str().map(str::to_owned);
    let ports = rows(&results, 1);
    let ports: BTreeMap<String, String> =
        ports.iter().filter_map(|row| Some((id(row.get("_uuid")?)?, name(row)?))).collect();
    let named = |of: &Value| -> Vec<String> {
        let ids = match (of.get(0).and_then(Value::as_str), of.get(1).and_then(Value::as_array)) {
            (Some("set"), Some(ids)) => ids.iter().filter_map(id).collect(),
            // A set of one is written without brackets.
            _ => id(of).into_iter().collect::<Vec<_>>(),
        };
        ids.iter().filter_map(|id| ports.get(id).cloned()).collect()
    };
    let bridges = rows(&results, 0);
    let bridge = |row: &Value| Some((name(row)?, row.get("ports").map(named).unwrap_or_default()));
    Ok(bridges.iter().filter_map(bridge).collect())
}

/// What there is of a bridge and a port.
#[derive(Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) has_bridge: bool,
    /// References to rows.
    ports: Vec<Value>,
}

impl Seen {
    pub(super) fn has_port(&self) -> bool {
        !self.ports.is_empty()
    }
}

pub(super) fn seen(answer: &str) -> Result<Seen, HostError> {
    let results = results(answer)?;
    let ports =
        rows(&results, 1).into_iter().filter_map(|mut row| Some(row.get_mut("_uuid")?.take()));
    Ok(Seen { has_bridge: !rows(&results, 0).is_empty(), ports: ports.collect() })
}

/// Takes these ports from whatever bridges have them.
fn forget(seen: &Seen) -> impl Iterator<Item = Value> {
    seen.ports.iter().map(|port| {
        json!({
            "op": "mutate", "table": "Bridge", "where": [["ports", "includes", port]],
            "mutations": [["ports", "delete", port]],
        })
    })
}

/// Adds a port, in place of those of its name.
pub(super) fn add(seen: &Seen, port: &SwitchPort, name: &str, owner: &PortOwner) -> String {
    // Open vSwitch may remove it when the host starts anew.
    let config = json!(["map", [["transient", "true"]]]);
    let mut row = json!({
        "name": name, "interfaces": ["named-uuid", "interface"], "other_config": config,
        "external_ids": ["map", [[OWNER, format!("{}/{}", owner.domid, owner.uuid)]]],
    });
    if let Some(tag) = port.tag {
        row["tag"] = json!(tag);
    }
    if !port.trunks.is_empty() {
        row["trunks"] = json!(["set", port.trunks]);
    }
    let ids = json!([
        "map",
        [
            ["attached-mac", owner.mac.to_string()],
            ["xen-vm-name", owner.vm],
            ["xen-vm-uuid", owner.uuid.to_string()],
        ]
    ]);
    let mut operations: Vec<Value> = forget(seen).collect();
    operations.extend([
        // A bridge that was removed meanwhile would have left the port to nobody.
        json!({
            "op": "wait", "timeout": 0, "table": "Bridge", "where": [["name", "==", port.bridge]],
            "columns": ["name"], "until": "==", "rows": [{ "name": port.bridge }],
        }),
        json!({ "op": "insert", "table": "Interface", "uuid-name": "interface", "row": { "name": name, "external_ids": ids } }),
        json!({ "op": "insert", "table": "Port", "uuid-name": "port", "row": row }),
        json!({
            "op": "mutate", "table": "Bridge", "where": [["name", "==", port.bridge]],
            "mutations": [["ports", "insert", ["named-uuid", "port"]]],
        }),
    ]);
    operations.extend(notice());
    transact(&operations)
}

/// Asks for all ports of ours.
pub(super) fn look_for_ours() -> String {
    let transient = json!(["other_config", "includes", ["map", [["transient", "true"]]]]);
    transact(&[json!({
        "op": "select", "table": "Port", "where": [transient], "columns": ["_uuid", "external_ids"],
    })])
}

/// Those of them whose domain does not live.
pub(super) fn dead(answer: &str, lives: impl Fn(DomId, Uuid) -> bool) -> Result<Seen, HostError> {
    let is_dead = |row: &Value| {
        let ids = row.get("external_ids").and_then(|it| it.get(1)).and_then(Value::as_array);
        let owner =
            ids.into_iter().flatten().find(|pair| pair.get(0).is_some_and(|it| it == OWNER));
        let owner = owner.and_then(|pair| pair.get(1)?.as_str()?.split_once('/'));
        let owner = owner.and_then(|(domid, uuid)| Some((domid.parse().ok()?, uuid.parse().ok()?)));
        owner.is_some_and(|(domid, uuid)| !lives(DomId(domid), uuid))
    };
    let rows = rows(&results(answer)?, 0);
    let ports =
        rows.into_iter().filter(is_dead).filter_map(|mut row| Some(row.get_mut("_uuid")?.take()));
    Ok(Seen { has_bridge: true, ports: ports.collect() })
}

/// Removes what was found.
pub(super) fn remove(seen: &Seen) -> String {
    let operations: Vec<Value> = forget(seen).chain(notice()).collect();
    transact(&operations)
}

/// The number by which the switch takes note of a change.
pub(super) fn number(answer: &str) -> Result<i64, HostError> {
    let results = results(answer)?;
    let last = rows(&results, results.len().saturating_sub(1));
    let number = last.first().and_then(|row| row.get("next_cfg")).and_then(Value::as_i64);
    number.ok_or_else(|| {
        HostError::Refused(
            "Open vSwitch's database has no configuration; `ovs-vsctl init` makes one".to_owned(),
        )
    })
}

/// Asks how far the switch is, and what it says of an interface.
pub(super) fn progress(name: &str) -> String {
    let current = json!({ "op": "select", "table": DATABASE, "where": [], "columns": ["cur_cfg"] });
    transact(&[current, select("Interface", name, &["error"])])
}

/// Whether the switch has taken note of this number.
pub(super) fn has_noticed(answer: &str, number: i64) -> Result<bool, HostError> {
    let results = results(answer)?;
    let current = rows(&results, 0);
    let current = current.first().and_then(|row| row.get("cur_cfg")).and_then(Value::as_i64);
    if current.is_none_or(|it| it < number) {
        return Ok(false);
    }
    let interface = rows(&results, 1);
    // An empty set, unless there is one.
    match interface.first().and_then(|row| row.get("error")).and_then(Value::as_str) {
        Some(problem) => Err(HostError::Refused(format!("Open vSwitch: {problem}"))),
        None => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_have_those_of_their_ports_that_are_not_ours() {
        let request: Value = serde_json::from_str(&look_at_all()).unwrap();
        let ours = json!(["other_config", "excludes", ["map", [["transient", "true"]]]]);
        assert_eq!(request["params"][2]["where"], json!([ours]));
        // A set of one is written as that one; of the second bridge's ports one is ours.
        let answer = r#"{"id":1,"error":null,"result":[
            {"rows":[{"name":"one","ports":["uuid","p1"]},{"name":"two","ports":["set",[["uuid","p2"],["uuid","p3"]]]},
                {"name":"none","ports":["set",[]]},{"name":7}]},
            {"rows":[{"_uuid":["uuid","p1"],"name":"one"},{"_uuid":["uuid","p2"],"name":"eth1"}]}]}"#;
        let found = all(answer).unwrap();
        let ports = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let expected = [("none", ports(&[])), ("one", ports(&["one"])), ("two", ports(&["eth1"]))];
        assert_eq!(found, expected.map(|(name, ports)| (name.to_owned(), ports)).into());
        assert!(all("{}").is_err());
    }

    #[test]
    fn a_port_is_added_in_place_of_an_earlier_one() {
        let found = r#"{"id":1,"error":null,"result":[{"rows":[{"_uuid":["uuid","b"]}]},{"rows":[{"_uuid":["uuid","p"]}]}]}"#;
        let found = seen(found).unwrap();
        assert!(found.has_bridge && found.has_port());
        let owner = PortOwner {
            vm: "a\"b".to_owned(),
            uuid: Uuid([7; 16]),
            domid: DomId(7),
            mac: "00:16:3e:00:00:01".parse().unwrap(),
        };
        let port = SwitchPort { bridge: "ovs0".to_owned(), tag: Some(10), trunks: vec![20, 30] };
        let request: Value = serde_json::from_str(&add(&found, &port, "vif7.0", &owner)).unwrap();
        let operations = request["params"].as_array().unwrap();
        assert_eq!(operations[0], "Open_vSwitch");
        assert_eq!(operations[1]["mutations"], json!([["ports", "delete", ["uuid", "p"]]]));
        assert_eq!(operations[3]["row"]["external_ids"][1][1], json!(["xen-vm-name", "a\"b"]));
        assert_eq!(
            operations[4]["row"],
            json!({
                "name": "vif7.0", "interfaces": ["named-uuid", "interface"], "tag": 10,
                "trunks": ["set", [20, 30]], "other_config": ["map", [["transient", "true"]]],
                "external_ids": ["map", [["xylem-domain", "7/07070707-0707-0707-0707-070707070707"]]],
            })
        );
        assert_eq!(
            operations[5]["mutations"],
            json!([["ports", "insert", ["named-uuid", "port"]]])
        );
    }

    #[test]
    fn ports_of_dead_domains_are_found_and_those_of_others_are_not_ours() {
        let row = |id: &str, owner: &str| {
            format!(
                r#"{{"_uuid":["uuid","{id}"],"external_ids":["map",[["xylem-domain","{owner}"]]]}}"#
            )
        };
        let uuid = Uuid([7; 16]);
        let rows = [
            row("lives", &format!("7/{uuid}")),
            row("dead", &format!("8/{uuid}")),
            row("odd", "seven"),
            r#"{"_uuid":["uuid","another"],"external_ids":["map",[]]}"#.to_owned(),
        ];
        let answer =
            format!(r#"{{"id":1,"error":null,"result":[{{"rows":[{}]}}]}}"#, rows.join(","));
        let found = dead(&answer, |domid, of| domid == DomId(7) && of == uuid).unwrap();
        assert_eq!(found.ports, [json!(["uuid", "dead"])]);
    }

    #[test]
    fn what_the_database_refuses_is_told() {
        for (answer, told) in [
            (
                r#"{"id":1,"error":null,"result":[{},null,{"error":"timed out","details":"\"wait\" timed out"}]}"#,
                "\"wait\" timed out",
            ),
            (r#"{"id":1,"error":{"error":"unknown database"},"result":null}"#, "unknown database"),
            ("{", "EOF while parsing"),
            (r#"{"id":1}"#, "an answer without a result"),
        ] {
            let error = number(answer).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let empty = r#"{"id":1,"error":null,"result":[{"count":0},{"rows":[]}]}"#;
        assert!(number(empty).unwrap_err().to_string().contains("ovs-vsctl init"));
    }

    #[test]
    fn a_change_is_done_when_the_switch_has_noticed_it() {
        let answer = |current: i64, error: &str| {
            format!(
                r#"{{"id":1,"error":null,"result":[{{"rows":[{{"cur_cfg":{current}}}]}},{{"rows":[{{"error":{error}}}]}}]}}"#
            )
        };
        let none = r#"["set",[]]"#;
        assert!(!has_noticed(&answer(4, none), 5).unwrap());
        assert!(has_noticed(&answer(5, none), 5).unwrap());
        let error =
            has_noticed(&answer(6, "\"could not open network device vif7.0\""), 5).unwrap_err();
        assert_eq!(error.to_string(), "Open vSwitch: could not open network device vif7.0");
    }
}
