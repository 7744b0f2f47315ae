//! The history as XAPI's `/rrd_updates` has it.

use std::fmt::Write as _;

use crate::history::{Entity, History, Of};
use crate::ring::{ARCHIVES, Archive};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    Json,
    Xml,
}

impl Form {
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Xml => "text/xml",
        }
    }
}

/// What a client asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ask {
    pub start_unix_s: u64,
    pub interval_s: u64,
    /// Also the host, whose UUID this is.
    pub host: Option<String>,
    /// This VM alone.
    pub vm: Option<String>,
}

/// So many CPUs of the host are told of, at most.
const CPUS_MAX: u64 = 1024;

/// Columns of the same values: how they are called, and by what the values are multiplied.
struct Column {
    legends: Vec<String>,
    factor: f32,
}

fn column(entity: &Entity<'_>, name: &str, host: &str, cpus: u64) -> Column {
    let (legend, factor) = match (entity.of, name) {
        (Of::Host, "cpu") => (format!("host:{host}:cpu_avg"), 1.0),
        (Of::Host, "memory") => (format!("host:{host}:memory_total_kib"), 1.0 / 1024.0),
        (Of::Host, "memory_free") => (format!("host:{host}:memory_free_kib"), 1.0 / 1024.0),
        (Of::Host, other) => (format!("host:{host}:{other}"), 1.0),
        (Of::Vm(uuid), "cpu") => (format!("vm:{uuid}:cpu_usage"), 1.0),
        (Of::Vm(uuid), other) => (format!("vm:{uuid}:{other}"), 1.0),
    };
    let mut legends = vec![format!("AVERAGE:{legend}")];
    // Clients draw the average or the sum of single CPUs. We know them together: each is told as all are.
    if name == "cpu" {
        match entity.of {
            Of::Host => legends
                .extend((0..cpus.min(CPUS_MAX)).map(|cpu| format!("AVERAGE:host:{host}:cpu{cpu}"))),
            Of::Vm(uuid) => legends.push(format!("AVERAGE:vm:{uuid}:cpu0")),
        }
    }
    Column { legends, factor }
}

/// The finest archive that is no finer than asked for and goes back far enough, or the coarsest.
fn archive_for(ask: &Ask, now_s: u64) -> Archive {
    let reaches = |it: &Archive| {
        let rows = u64::try_from(it.rows).unwrap_or(u64::MAX);
        now_s.saturating_sub(it.step_s.saturating_mul(rows)) <= ask.start_unix_s
    };
    let fitting = ARCHIVES.into_iter().filter(|it| it.step_s >= ask.interval_s);
    fitting.into_iter().find(reaches).unwrap_or(ARCHIVES[ARCHIVES.len() - 1])
}

/// The newest row first, as clients of XAPI expect.
#[must_use]
pub fn updates(history: &History, ask: &Ask, form: Form) -> String {
    let now_s = history.last_s();
    let archive = archive_for(ask, now_s);
    let host = ask.host.as_deref().and_then(|_| history.entity(Of::Host));
    let vms: Vec<_> = match &ask.vm {
        Some(uuid) => history.entity(Of::Vm(uuid)).into_iter().collect(),
        None => history.all_vms().collect(),
    };
    let entities: Vec<_> = vms.into_iter().chain(host).collect();
    let named = |it: &Entity<'_>| -> Vec<Column> {
        let host = ask.host.as_deref().unwrap_or_default();
        it.names().map(|name| column(it, name, host, history.cpus())).collect()
    };
    let columns: Vec<_> = entities.iter().flat_map(named).collect();
    let slots = archive.slots(ask.start_unix_s, now_s);
    let rows = slots.clone().count();
    let legends: Vec<_> =
        columns.iter().flat_map(|it| it.legends.iter().map(String::as_str)).collect();
    let meta = Meta {
        start: archive.end_of(*slots.start()),
        step: archive.step_s,
        end: archive.end_of(*slots.end()),
        rows,
        legends: &legends,
    };
    let mut out = form.begin(&meta);
    for (at, slot) in slots.rev().enumerate() {
        let values = entities.iter().flat_map(|it| it.at(archive, slot));
        let values = values.zip(&columns).flat_map(|(value, column)| {
            let value = value.map(|it| it * column.factor);
            std::iter::repeat_n(value, column.legends.len())
        });
        form.row(&mut out, at == 0, archive.end_of(slot), values);
    }
    out.push_str(form.end());
    out
}

struct Meta<'a> {
    start: u64,
    step: u64,
    end: u64,
    rows: usize,
    legends: &'a [&'a str],
}

impl Form {
    fn begin(self, meta: &Meta<'_>) -> String {
        let Meta { start, step, end, rows, legends } = meta;
        let columns = legends.len();
        match self {
            Self::Json => {
                let legend = serde_json::to_string(legends).unwrap_or_default();
                format!(
                    "{{\"meta\":{{\"start\":{start},\"step\":{step},\"end\":{end},\"rows\":{rows},\
                     \"columns\":{columns},\"legend\":{legend}}},\"data\":["
                )
            }
            Self::Xml => {
                let entry = |it: &&str| format!("<entry>{it}</entry>");
                let legend: String = legends.iter().map(entry).collect();
                format!(
                    "<?xml version=\"1.0\"?><xport><meta><start>{start}</start><step>{step}</step><end>{end}</end>\
                     <rows>{rows}</rows><columns>{columns}</columns><legend>{legend}</legend></meta><data>"
                )
            }
        }
    }

    fn row(
        self,
        out: &mut String,
        is_first: bool,
        at_s: u64,
        values: impl Iterator<Item = Option<f32>>,
    ) {
        match self {
            Self::Json => {
                let comma = if is_first { "" } else { "," };
                let _infallible = write!(out, "{comma}{{\"t\":{at_s},\"values\":[");
                for (at, value) in values.enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    // Strings: JSON has no NaN.
                    let value = value.unwrap_or(f32::NAN);
                    let _infallible = write!(out, "{comma}\"{value}\"");
                }
                out.push_str("]}");
            }
            Self::Xml => {
                let _infallible = write!(out, "<row><t>{at_s}</t>");
                for value in values {
                    let _infallible = write!(out, "<v>{}</v>", value.unwrap_or(f32::NAN));
                }
                out.push_str("</row>");
            }
        }
    }

    fn end(self) -> &'static str {
        match self {
            Self::Json => "]}",
            Self::Xml => "</data></xport>",
        }
    }
}
