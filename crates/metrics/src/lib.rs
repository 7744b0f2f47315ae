//! What a host does, as numbers: OpenMetrics text for Prometheus, and a bounded history in memory.
//!
//! The shell asks the daemon now and then and makes a [`Sample`] of its answers. [`scrape`] turns the last one into text, with what
//! the shell counts of itself ([`Own`]); a [`History`] keeps averages of them. Nothing here looks at a clock: times are arguments.
//!
//! What gives a family its samples is a table ([`FAMILIES`]), so that the documentation and the tests of dashboards have the
//! same names as the text.
//!
//! The text is written here and not by `prometheus-client`, which has no summaries: each latency would have to be written
//! beside it, with labels and escapes of its own, and these are most of the work.

mod devices;
mod families;
mod history;
mod ring;
mod sample;
mod scrape;
mod text;
mod updates;

pub use families::{FAMILIES, table};
pub use history::{Entity, History, Of, SERIES_MAX, Series, Span};
pub use ring::{ARCHIVES, Archive};
pub use sample::{Host, Own, Sample};
pub use scrape::{scrape, scrape_vms};
pub use text::{Family, Format, Kind};
pub use updates::{Ask, Form, updates};
