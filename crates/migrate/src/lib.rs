//! Streams in which a domain's state is saved or sent to another host, as Xen's own toolstack reads
//! and writes them: pure, from and to bytes.
//!
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
mod error;
pub mod image;
mod input;
pub mod libxc;
pub mod libxl;
pub mod rounds;
pub mod save_file;

pub use error::{Fault, StreamError};
pub use input::{Input, RECORD_BYTES_MAX};
