//! What a measured program prints: a line `SAMPLE NAME VALUE` for each time that it measured something.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::demo::median;

/// Samples by name.
#[derive(Debug, Default)]
pub(super) struct Samples {
    values: BTreeMap<String, Vec<f64>>,
    /// The first line that ought to have been a sample.
    bad: Option<String>,
}

impl Samples {
    /// Takes what a line says, and tells whether it was for us. With `BOUND` or `FAILED` in place of `SAMPLE` it is what
    /// had passed when something was stopped or failed; that word is then part of the name.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let mut words = line.split_whitespace();
        let Some(word @ ("SAMPLE" | "BOUND" | "FAILED")) = words.next() else { return false };
        match (words.next(), words.next().and_then(|value| value.parse().ok())) {
            (Some(name), Some(value)) => {
                let name =
                    if word == "SAMPLE" { name.to_owned() } else { format!("{word} {name}") };
                self.values.entry(name).or_default().push(value);
            }
            _ => {
                self.bad.get_or_insert_with(|| line.to_owned());
            }
        }
        true
    }

    /// # Errors
    /// A line could not be read.
    pub(super) fn check(&self) -> Result<()> {
        match &self.bad {
            Some(line) => bail!("not a sample: {line}"),
            None => Ok(()),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// All of a name, in the order in which they came.
    pub(super) fn all(&self, name: &str) -> Result<&[f64]> {
        let values = self.values.get(name).with_context(|| format!("no sample of {name}"))?;
        Ok(values)
    }

    /// The median of a name.
    pub(super) fn value(&self, name: &str) -> Result<f64> {
        median(self.all(name)?).with_context(|| format!("no sample of {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_a_name_is_its_value() {
        let mut samples = Samples::default();
        for line in ["SAMPLE a 3", "hello", "SAMPLE a 1.0", "SAMPLE a 2", "BOUND a 9"] {
            assert_eq!(samples.take(line), line != "hello");
        }
        assert_eq!(samples.value("a").unwrap(), 2.0);
        assert_eq!(samples.value("BOUND a").unwrap(), 9.0);
        assert_eq!(samples.value("b").unwrap_err().to_string(), "no sample of b");
        samples.check().unwrap();
    }

    #[test]
    fn a_line_that_is_no_sample_is_told() {
        for line in ["SAMPLE", "SAMPLE a", "SAMPLE a b"] {
            let mut samples = Samples::default();
            assert!(samples.take(line));
            assert_eq!(samples.check().unwrap_err().to_string(), format!("not a sample: {line}"));
        }
    }
}
