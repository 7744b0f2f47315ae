//! Changes of running domains.

use api::{Target, TuneRequest};
use toolstack::Request;
use toolstack::tuning::Tuning;

use crate::{Failed, Service};

impl Service<'_> {
    pub(crate) fn tune(&self, request: TuneRequest) -> Result<api::Reply, Failed> {
        let (Target(target), tuning) = match request {
            TuneRequest::MemMax { target, kib } => (target, Tuning::MemoryMax { kib }),
            TuneRequest::MemSet { target, kib } => (target, Tuning::MemoryTarget { kib }),
        };
        self.done(Request::Tune { target, tuning })
    }
}
