//! Storage on the simulated host: one suite for every kind of SR, also with a daemon that is
//! killed.

mod images;
mod iscsi;
mod nbd;
mod suite;
