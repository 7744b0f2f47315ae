//! The order of records, as far as one depends on another.

use super::{DomainType, Headers, P2mFrames, PageData, PageType, Record};
use crate::error::Fault;

/// What has come of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    headers: Headers,
    /// Pages above this are refused.
    pfn_max: u64,
    /// A PV guest's pointers, once known.
    width: Option<u8>,
    has_p2m: bool,
    static_data_ended: bool,
    verifies: bool,
}

impl Order {
    pub(crate) fn new(headers: Headers, pfn_max: u64) -> Self {
        Self {
            headers,
            pfn_max,
            width: None,
            has_p2m: false,
            static_data_ended: false,
            verifies: false,
        }
    }

    /// Whether the record may come here.
    pub(crate) fn check(&mut self, record: &Record) -> Result<(), Fault> {
        match record {
            Record::PageData(data) => self.check_pages(data),
            Record::PvInfo { width, .. } => {
                self.expect(DomainType::Pv)?;
                if self.width.replace(*width).is_some() {
                    return Err(Fault::Twice);
                }
                Ok(())
            }
            Record::P2mFrames(p2m) => self.check_p2m(p2m),
            Record::Vcpu(_) | Record::SharedInfo(_) => {
                self.expect(DomainType::Pv)?;
                self.expect_static_data()?;
                if self.has_p2m { Ok(()) } else { Err(Fault::Before("X86_PV_P2M_FRAMES")) }
            }
            // The specification wants the parameters first, Xen writes the context first.
            Record::HvmContext(_) | Record::HvmParams(_) => {
                self.expect(DomainType::Hvm)?;
                self.expect_static_data()
            }
            Record::StaticDataEnd if self.static_data_ended => Err(Fault::Twice),
            Record::StaticDataEnd => {
                self.static_data_ended = true;
                Ok(())
            }
            Record::CpuidPolicy(_) | Record::MsrPolicy(_) if self.static_data_ended => {
                Err(Fault::After("STATIC_DATA_END"))
            }
            Record::Verify if self.verifies => Err(Fault::Twice),
            Record::Verify => {
                self.verifies = true;
                self.expect_static_data()
            }
            Record::Checkpoint | Record::End => self.expect_static_data(),
            Record::CpuidPolicy(_) | Record::MsrPolicy(_) | Record::Tsc(_) => Ok(()),
        }
    }

    fn check_p2m(&mut self, p2m: &P2mFrames) -> Result<(), Fault> {
        self.expect(DomainType::Pv)?;
        self.expect_static_data()?;
        let width = self.width.ok_or(Fault::Before("X86_PV_INFO"))?;
        if u64::from(p2m.end) > self.pfn_max {
            return Err(Fault::PageBeyond(p2m.end.into()));
        }
        if p2m.frames_needed(width) != p2m.frames.len() as u64 {
            return Err(Fault::Length(8 + 8 * p2m.frames.len() as u64));
        }
        self.has_p2m = true;
        Ok(())
    }

    /// Whether these pages may come here.
    pub(crate) fn check_pages(&mut self, data: &PageData) -> Result<(), Fault> {
        self.expect_static_data()?;
        if self.headers.domain == DomainType::Pv && !self.has_p2m {
            return Err(Fault::Before("X86_PV_P2M_FRAMES"));
        }
        for &(pfn, kind) in &data.pages {
            if pfn > self.pfn_max {
                return Err(Fault::PageBeyond(pfn));
            }
            if matches!(kind, PageType::Table { .. }) && self.headers.domain == DomainType::Hvm {
                return Err(Fault::WrongKind(self.headers.domain.as_str()));
            }
        }
        Ok(())
    }

    /// Version 2 has no record for it: it is inferred at the first one that needs it.
    fn expect_static_data(&mut self) -> Result<(), Fault> {
        if self.headers.version < 3 {
            self.static_data_ended = true;
        }
        if self.static_data_ended { Ok(()) } else { Err(Fault::Before("STATIC_DATA_END")) }
    }

    fn expect(&self, domain: DomainType) -> Result<(), Fault> {
        if self.headers.domain == domain {
            return Ok(());
        }
        Err(Fault::WrongKind(self.headers.domain.as_str()))
    }
}
