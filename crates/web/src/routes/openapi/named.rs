//! Names for the objects that types contain without one: generators of clients make a class of each, and either invent
//! names that change with the order of variants or give up.

use serde_json::{Map, Value, json};

/// Where schemas are found by name.
const PLACE: &str = "#/components/schemas/";

/// Gives each object within these schemas a schema of its own, called by where it was.
pub(super) fn name_all(schemas: &mut Map<String, Value>) {
    let mut found = Vec::new();
    for (name, schema) in schemas.iter_mut() {
        name_parts(schema, name, &mut found);
    }
    for (name, schema) in found {
        let before = schemas.insert(name.clone(), schema);
        assert!(before.is_none(), "two schemas are called {name}");
    }
}

fn name_parts(schema: &mut Value, name: &str, found: &mut Vec<(String, Value)>) {
    let Some(schema) = schema.as_object_mut() else { return };
    whole_numbers_as_keys(schema);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (key, property) in properties {
            take(property, &format!("{name}{}", pascal(key)), found);
        }
    }
    for key in ["oneOf", "anyOf"] {
        let variants = schema.get_mut(key).and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten() {
            let own = word(variant).map_or_else(String::new, |word| pascal(&word));
            take(variant, &format!("{name}{own}"), found);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(item) = schema.get_mut(key) {
            take(item, &format!("{name}Item"), found);
        }
    }
}

/// Replaces an object by a reference to it.
fn take(schema: &mut Value, name: &str, found: &mut Vec<(String, Value)>) {
    // Anything at all, as every tool reads it.
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    name_parts(schema, name, found);
    if schema.get("properties").is_some() {
        let reference = json!({ "$ref": format!("{PLACE}{name}") });
        found.push((name.to_owned(), std::mem::replace(schema, reference)));
    }
}

/// What tells a variant from the others: the value of its tag, or its only field.
fn word(variant: &Value) -> Option<String> {
    let properties = variant.get("properties")?.as_object()?;
    let tag = properties.values().find_map(|it| it.get("const")?.as_str());
    tag.or_else(|| properties.keys().next().map(String::as_str)).map(str::to_owned)
}

/// A map by numbers is one by text in JSON, and no generator knows what to make of a pattern.
fn whole_numbers_as_keys(schema: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = schema.get("patternProperties") else { return };
    if patterns.len() == 1
        && let Some(values) = patterns.values().next().cloned()
    {
        schema.remove("patternProperties");
        schema.insert("additionalProperties".to_owned(), values);
    }
}

fn pascal(word: &str) -> String {
    let parts = word.split(|letter: char| !letter.is_ascii_alphanumeric());
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
    };
    parts.map(capital).collect::<Vec<String>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn variants_and_their_objects_get_names_of_their_own() {
        let mut schemas = json!({
            "Planned": { "oneOf": [
                { "type": "object", "properties": { "create": { "$ref": "#/components/schemas/Create" } } },
                { "type": "object", "properties": { "stats": true } },
                { "type": "object", "properties": {
                    "block-attach": { "type": "object", "properties": { "disk": { "type": "string" } } },
                } },
                { "enum": ["nothing"], "type": "string" },
            ] },
            "Sched": { "oneOf": [
                { "type": "object", "properties": {
                    "do": { "const": "of_pool" },
                    "vcpus": { "type": "array", "items": { "type": "object", "properties": {} } },
                } },
            ] },
            "Cpus": {
                "type": "object",
                "additionalProperties": false,
                "patternProperties": { "^\\d+$": { "type": "string" } },
            },
        });
        name_all(schemas.as_object_mut().unwrap());
        let lines: Vec<String> = (schemas.as_object().unwrap().iter())
            .map(|(name, schema)| format!("{name}: {schema}\n"))
            .collect();
        expect![[r##"
            Cpus: {"additionalProperties":{"type":"string"},"type":"object"}
            Planned: {"oneOf":[{"$ref":"#/components/schemas/PlannedCreate"},{"$ref":"#/components/schemas/PlannedStats"},{"$ref":"#/components/schemas/PlannedBlockAttach"},{"enum":["nothing"],"type":"string"}]}
            PlannedBlockAttach: {"properties":{"block-attach":{"$ref":"#/components/schemas/PlannedBlockAttachBlockAttach"}},"type":"object"}
            PlannedBlockAttachBlockAttach: {"properties":{"disk":{"type":"string"}},"type":"object"}
            PlannedCreate: {"properties":{"create":{"$ref":"#/components/schemas/Create"}},"type":"object"}
            PlannedStats: {"properties":{"stats":{}},"type":"object"}
            Sched: {"oneOf":[{"$ref":"#/components/schemas/SchedOfPool"}]}
            SchedOfPool: {"properties":{"do":{"const":"of_pool"},"vcpus":{"items":{"$ref":"#/components/schemas/SchedOfPoolVcpusItem"},"type":"array"}},"type":"object"}
            SchedOfPoolVcpusItem: {"properties":{},"type":"object"}
        "##]].assert_eq(&lines.concat());
    }
}
