//! A host made of files, on which a store daemon serves guests without Xen.
//!
//! [`HostFolder`] is the layout, for both sides; [`Guest`] is a fake guest, which can drive our
//! daemon and its peers. A fake guest has a real ring page and real wake-ups, but nothing else of a
//! domain. The layout is the one that Xylem's shim for the packaged daemons defines:
//!
//! ```text
//!   ring.N   4096 bytes, mapped shared by both sides: the store's ring page of domain N
//!   dom.N    exists as long as domain N does: `r` running, `s` shut down, `d` dying,
//!            and after a colon its unique id (1000000+N if there is none). Domain 0 needs no file.
//!   port.0   the number of the port that domain 0's kernel offers; content without meaning
//!   evtchn   datagram socket of the daemon. A guest sends its domid as a native u32 to be looked
//!            at, or 0xffffffff: some dom.N changed
//!   evt.N    datagram socket of guest N; the daemon sends it a byte when it should look
//! ```
//!
//! Port 1000+N is the daemon's end of domain N's event channel, port 1 fires when a domain changed.
//! The pages and sockets are world-writable. All of it survives the daemon: a successor, by exec or
//! after a crash, finds the same files.

mod folder;
mod guest;
mod page;

pub use folder::{DomainFile, EXCEPTION_PORT, HostFolder, State, domain_of_port, port_of_domain};
pub use guest::Guest;
pub use page::Page;
