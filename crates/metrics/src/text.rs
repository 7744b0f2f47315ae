//! OpenMetrics 1.0, and the older format of Prometheus (0.0.4).

use std::fmt::Write as _;

/// Characters of a label's value: names of VMs are their owners' choice.
const VALUE_CHARS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// What a client takes that says so in `Accept`: the newer format unless it only names the older one.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let names = |kind: &str| accept.split(',').any(|it| it.trim().starts_with(kind));
        if names("text/plain") && !names("application/openmetrics-text") {
            Self::Prometheus
        } else {
            Self::OpenMetrics
        }
    }

    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    Info,
    /// How many are no more than each of some bounds, a sum and a count.
    Histogram,
    /// Quantiles, a sum and a count.
    Summary,
}

impl Kind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
            Self::Summary => "summary",
        }
    }
}

/// A metric with its labels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Family {
    /// Without the suffix of its kind.
    pub name: &'static str,
    pub kind: Kind,
    /// Its name ends with it.
    pub unit: Option<&'static str>,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Family {
    /// What a query has to name: for a summary also this with `_sum` and `_count`, for a histogram one of these, or `_bucket`.
    #[must_use]
    pub fn queried(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram | Kind::Summary => "",
        };
        format!("{}{suffix}", self.name)
    }
}

/// Names and values in the order in which they are given, as they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels(String);

impl Labels {
    pub(crate) fn of(key: &str, value: &str) -> Self {
        Self::default().and(key, value)
    }

    pub(crate) fn and(&self, key: &str, value: &str) -> Self {
        let mut text = self.0.clone();
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(key);
        text.push_str("=\"");
        for char in value.chars().filter(|it| !it.is_control()).take(VALUE_CHARS_MAX) {
            if matches!(char, '\\' | '"') {
                text.push('\\');
            }
            text.push(char);
        }
        text.push('"');
        Self(text)
    }
}

/// A text in progress.
pub(crate) struct Text {
    format: Format,
    out: String,
}

/// The samples of a family.
pub(crate) struct Samples<'a> {
    out: &'a mut String,
    family: &'a Family,
    name: String,
}

impl Text {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, out: String::new() }
    }

    pub(crate) fn family<'a>(&'a mut self, family: &'a Family) -> Samples<'a> {
        let name = family.queried();
        let (declared, kind) = match (self.format, family.kind) {
            (Format::OpenMetrics, kind) => (family.name, kind.as_str()),
            // It knows no infos.
            (Format::Prometheus, Kind::Info) => (&*name, "gauge"),
            (Format::Prometheus, kind) => (&*name, kind.as_str()),
        };
        let help = family.help;
        let _infallible = write!(self.out, "# HELP {declared} {help}\n# TYPE {declared} {kind}\n");
        if let (Format::OpenMetrics, Some(unit)) = (self.format, family.unit) {
            let _infallible = writeln!(self.out, "# UNIT {declared} {unit}");
        }
        Samples { out: &mut self.out, family, name }
    }

    pub(crate) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

impl Samples<'_> {
    pub(crate) fn put(&mut self, labels: &Labels, value: f64) {
        debug_assert_ne!(self.family.kind, Kind::Summary);
        self.line("", &labels.0, value);
    }

    pub(crate) fn value(&mut self, value: f64) {
        self.put(&Labels::default(), value);
    }

    pub(crate) fn summary(&mut self, labels: &Labels, latency: &api::Latency) {
        debug_assert_eq!(self.family.kind, Kind::Summary);
        for (quantile, ns) in [("0.5", latency.p50_ns), ("0.99", latency.p99_ns)] {
            // There is no quantile of nothing.
            if latency.count > 0 {
                self.line("", &labels.and("quantile", quantile).0, seconds(ns));
            }
        }
        self.line("_sum", &labels.0, seconds(latency.total_ns));
        self.line("_count", &labels.0, number(latency.count));
    }

    pub(crate) fn histogram(&mut self, labels: &Labels, latency: &api::Latency) {
        debug_assert_eq!(self.family.kind, Kind::Histogram);
        for (bound_ns, count) in &latency.up_to {
            let bound = seconds(*bound_ns).to_string();
            self.line("_bucket", &labels.and("le", &bound).0, number(*count));
        }
        self.line("_bucket", &labels.and("le", "+Inf").0, number(latency.count));
        self.line("_sum", &labels.0, seconds(latency.total_ns));
        self.line("_count", &labels.0, number(latency.count));
    }

    fn line(&mut self, suffix: &str, labels: &str, value: f64) {
        let name = &self.name;
        let _infallible = if labels.is_empty() {
            writeln!(self.out, "{name}{suffix} {value}")
        } else {
            writeln!(self.out, "{name}{suffix}{{{labels}}} {value}")
        };
    }
}

/// Prometheus has no other numbers; they are exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn number(it: u64) -> f64 {
    it as f64
}

pub(crate) fn count(it: usize) -> f64 {
    number(u64::try_from(it).unwrap_or(u64::MAX))
}

pub(crate) fn seconds(ns: u64) -> f64 {
    number(ns) / 1e9
}

pub(crate) fn bytes(kib: u64) -> f64 {
    number(kib) * 1024.0
}
