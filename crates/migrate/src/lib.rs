//! A domain's state: read from Xen ([`Capture`]), loaded into a new domain ([`Load`]), and between
//! the two the streams in which it is saved or sent to another host, as Xen's own toolstack reads and
//! writes them. Pure: hypercalls go through [`xen::Hypervisor`], streams are bytes.
//!
//! ```text
//!   domain ──> Capture ──records──> a stream, bytes ──parser──records──> Load ──> new domain
//! ```
//! The streams:
//! ```text
//!   a file of `xl save`:  header, configuration ──┐
//!                                                 v
//!   libxl's stream:       header, records, "a libxc stream follows", records, end
//!                                                 │   ^
//!                                                 v   │ at its end
//!   libxc's stream:       two headers, records (memory, registers, ...), end
//! ```
//! Each format has a parser, which takes bytes in any pieces from a shared [`Input`] and returns one
//! item at a time, and records that encode themselves. A stream may come from anywhere: a parser
//! holds at most one record of [`RECORD_BYTES_MAX`], and that only as far as its bytes have come.
//!
//! Sources: `docs/specs/libxc-migration-stream.pandoc` and `libxl-migration-stream.pandoc` of Xen.

#![forbid(unsafe_code)]

mod bytes;
mod capture;
mod dump;
mod error;
mod frames;
mod hvm_params;
pub mod image;
mod input;
mod layout;
pub mod libxc;
pub mod libxl;
mod load;
pub mod peer;
mod resume;
pub mod rounds;
pub mod save_file;
pub mod xl_peer;

pub use capture::{Capture, CaptureError, Round};
pub use dump::Dump;
pub use error::{Fault, StreamError};
pub use input::{Input, RECORD_BYTES_MAX};
pub use load::{Channel, Load, LoadError, Loaded, Target};
pub use resume::{Rings, prepare_in_place};
