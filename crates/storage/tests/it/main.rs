//! Storage on the simulated host: one suite for every kind of SR, and the same with a daemon that dies.

mod iscsi;
mod nbd;
mod suite;
