//! The daemon itself on sockets, on any Linux machine: no Xen is needed for any of this.

mod daemon;
