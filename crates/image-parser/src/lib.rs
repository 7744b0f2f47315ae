//! Parses kernels in a confined process.
//!
//! A kernel comes from the VM's owner, and unpacking it is the most complex processing of untrusted
//! bytes in a toolstack. So a separate process does it: without root, capabilities, files, and
//! system calls except for memory, reading and writing (`confinement`); with bounded memory and CPU
//! time. It receives the open file, and returns its result, which
//! [`xen_build::KernelImage::assemble`] checks.
//!
//! A process parses one image and exits: a compromised parser never sees another image. The next
//! process is started meanwhile, so its start costs no time.
//!
//! ```text
//!   Parser::parse          serve()
//!     file, result  ──────>  parse, write the unpacked kernel and its description into `result`
//!     assemble      <──────  "ok", or what is wrong with the image; exit
//! ```

mod child;
mod confinement;
mod parent;

pub use child::serve;
pub use confinement::{enter as confine, enter_with_network as confine_client};
pub use parent::{Limits, ParseError, Parser};

/// The parser's first message: the descriptors are the file and the result.
const REQUEST: &[u8] = b"kernel";

/// Longest answer: an error message.
const ANSWER_BYTES_MAX: usize = 1024;

/// First byte of an answer.
const ANSWER_OK: u8 = b'+';
const ANSWER_ERROR: u8 = b'-';
