//! The toolstack's machine alone, without Xen, store or host: what one VM's operation costs beside others.

use anyhow::{Context, Result, ensure};

use super::Row;
use super::samples::Samples;
use lab::cargo;

const SIZES: [u32; 3] = [1, 1000, 10_000];
/// Names of samples, and what they are.
const OPERATIONS: [(&str, &str); 8] = [
    ("create-destroy", "create and destroy"),
    ("lookup", "lookup by name"),
    ("lookup-of-nobody", "lookup of a name that nobody has"),
    ("console", "request for a console"),
    ("check", "check of a configuration with a disk"),
    ("change", "a change of another toolstack's domain"),
    ("introduction", "an introduction to the store"),
    ("waiters", "any event, while 100 clients wait"),
];
/// How much more it may cost beside 10,000 VMs: a few more levels of the maps.
const WORSE_MAX: f64 = 3.0;

pub(super) fn run() -> Result<Vec<Row>> {
    let output = cargo::example("machine")?.output().context("the example does not start")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the machine failed: {errors}");
    let mut samples = Samples::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        samples.take(line);
    }
    samples.check()?;
    let mut rows = Vec::new();
    for (name, what) in OPERATIONS {
        let alone = samples.value(&format!("{name}-1"))? / 1000.0;
        for size in SIZES {
            let ours = samples.value(&format!("{name}-{size}"))? / 1000.0;
            let mut row = Row::fewer(format!("{what}, {size} VMs"), "us", ours, ("1 VM", alone));
            row.ratio = ours / alone;
            rows.push(row.within(WORSE_MAX));
        }
    }
    Ok(rows)
}
