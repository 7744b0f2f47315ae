//! The parser of libxc's stream.

use super::order::Order;
use super::record::{bytes_max, name};
use super::{Headers, Record};
use crate::error::{Fault, StreamError};
use crate::input::Input;

/// What a parser found next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Item {
    /// First.
    Headers(Headers),
    Record(Record),
}

/// Parses one stream. After [`Record::End`] the input is at the byte behind it.
#[derive(Debug)]
pub struct Parser {
    pfn_max: u64,
    order: Option<Order>,
    /// Records so far.
    records: u64,
    has_ended: bool,
}

impl Parser {
    /// For a domain whose highest page is at most this.
    #[must_use]
    pub fn new(pfn_max: u64) -> Self {
        Self { pfn_max, order: None, records: 0, has_ended: false }
    }

    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The next item, once its bytes have come; always `None` after the end.
    ///
    /// # Errors
    /// The stream is damaged, foreign, or not for this version. It cannot be read further.
    pub fn next(&mut self, input: &mut Input) -> Result<Option<Item>, StreamError> {
        while !self.has_ended {
            let Some(order) = &mut self.order else {
                let Some(headers) = Headers::parse(input)? else { return Ok(None) };
                self.order = Some(Order::new(headers, self.pfn_max));
                return Ok(Some(Item::Headers(headers)));
            };
            let Some(raw) = input.record(self.records, name, bytes_max)? else { return Ok(None) };
            let error = |fault: Fault| StreamError {
                place: format!(
                    "record {} ({}) at byte {}",
                    self.records,
                    name(raw.kind),
                    raw.offset
                ),
                fault,
            };
            let decoded = Record::decode(raw.kind, raw.body).map_err(error)?;
            // What says nothing may come anywhere: writers from 4.6 to 4.8 wrote it.
            let Some(record) = decoded.filter(|record| !record.is_empty()) else {
                self.records += 1;
                continue;
            };
            order.check(&record).map_err(error)?;
            self.records += 1;
            self.has_ended = record == Record::End;
            return Ok(Some(Item::Record(record)));
        }
        Ok(None)
    }
}
