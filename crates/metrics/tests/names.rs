//! Files that name metrics.

use std::collections::BTreeSet;
use std::path::Path;

use metrics::{FAMILIES, table};

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_documentation_has_all_metrics() {
    let page = file("docs/metrics.md");
    assert!(page.contains(&table()), "docs/metrics.md is to have this table:\n{}", table());
}

#[test]
fn dashboards_and_rules_name_metrics_that_there_are() {
    let mut known = BTreeSet::new();
    for family in FAMILIES {
        known.insert(family.queried());
        known.insert(format!("{}_sum", family.name));
        known.insert(format!("{}_count", family.name));
        known.insert(format!("{}_bucket", family.name));
    }
    let dashboard = file("dist/grafana/xylem.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().is_some_and(|it| it.len() > 5));
    for (text, least) in [(dashboard, 8), (file("dist/prometheus/xylem.rules.yml"), 4)] {
        let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let words = text.split(|it| !is_word(it)).filter(|it| it.starts_with("xylem_"));
        let named: BTreeSet<_> = words.collect();
        assert!(named.len() >= least, "{named:?}");
        for name in named {
            assert!(known.contains(name), "{name} is no metric");
        }
    }
}
