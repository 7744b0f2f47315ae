//! Xylem's own format of a saved VM, for files and for connections between two hosts: pure, from and
//! to bytes.
//!
//! ```text
//!   preamble: magic, version
//!   HEAD                              what the VM is
//!   RECORD ...                        libxc's records before the first page
//!   PAGES ...  END_OF_ROUND           pages of round 0
//!   PAGES ...  END_OF_ROUND           those that changed since, and so on
//!   RECORD ... EMULATOR ...           registers, the device model's state
//!   CHECKPOINT                        all before it is consistent; more rounds may follow
//!   END
//!   INDEX_STATE ... INDEX_PAGES ...   files only: where the newest copy of everything is
//!   trailer                           files only: where the index is
//! ```
//! All of it but preamble and trailer are frames with a checksum. A frame of pages covers at most one
//! block of [`BLOCK_PAGES`]: a peer's frame of some bytes can never claim more than that. It says of
//! each page what it is; a page of zeros takes no further bytes, a hole none at all.
//!
//! [`Writer`] makes files and streams. [`StreamReader`] reads both in order, with one frame in memory.
//! [`FileReader`] reads a file by its index: every page once, in any order, on any number of threads.
//! A migration over several connections gives each page a [`Lane`] by its number, so that a page never
//! overtakes its earlier copy.

mod choice;
mod codec;
mod file;
mod frame;
mod head;
mod index;
mod lanes;
mod pages;
mod reader;
mod writer;

pub use choice::{CodecChoice, Sample};
pub use codec::{Codec, Effort};
pub use file::{FileReader, ImageError, ReadAt, ReadError};
pub use frame::is_image;
pub use head::{Fact, Head, Weight};
pub use lanes::{Arrivals, Lane, Lanes, Token};
pub use pages::{BLOCK_PAGES, Pages, Run};
pub use reader::{Item, Limits, StreamReader};
pub use writer::{Counts, Writer};
