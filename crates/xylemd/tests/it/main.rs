//! The daemon's program as others start it.

mod confined;
