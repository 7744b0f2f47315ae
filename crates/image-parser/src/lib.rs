//! Parses kernels in a process that can do nothing else.
//!
//! A kernel comes from whoever owns the VM, and unpacking one is the most that a toolstack does with
//! bytes it did not write. So a process of its own does it: no root, no capability, no file, no system
//! call but for memory, reading and writing (`confinement`); bounded in memory and CPU time. It gets
//! the open file, and gives back what it found, which [`xen_build::KernelImage::assemble`] checks.
//!
//! A process parses one image and ends: whatever an image does to its parser, the next image's VM does
//! not meet it. The next process is started meanwhile, so nobody waits for it.
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
pub use parent::{Limits, ParseError, Parser};

/// The parser's first message: the descriptors are the file and the result.
const REQUEST: &[u8] = b"kernel";

/// Longest answer: a word about what is wrong.
const ANSWER_BYTES_MAX: usize = 1024;

/// How an answer begins.
const ANSWER_OK: u8 = b'+';
const ANSWER_ERROR: u8 = b'-';
