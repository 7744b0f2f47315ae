//! What `xl migrate` and `xl migrate-receive` say to each other around the stream. Source: `tools/xl/xl.h` and
//! `xl_migrate.c` of Xen.
//!
//! ```text
//!   sender                                   receiver
//!                                            BANNER
//!   save file's header, libxl's stream  -->
//!                                       <--  READY
//!   GO                                  -->
//!                                       <--  REPORT, a status byte: 0 if it runs
//!                                       <--  GO if it does not: it is the sender's again
//! ```
//! There is no way to ask later what became of a VM.

/// What the receiver says first. Without a NUL, unlike the others.
pub const BANNER: &[u8] = b"xl migration receiver ready, send binary domain data.\n";
/// The receiver has all of the domain.
pub const READY: &[u8] = b"domain received, ready to unpause\0";
/// Whoever gets this owns the domain.
pub const GO: &[u8] = b"domain is yours, you are cleared to unpause\0";
/// A status byte follows: 0 if the receiver runs the domain.
pub const REPORT: &[u8] = b"my copy unpause results are as follows\0";
