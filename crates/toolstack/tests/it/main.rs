//! Behaviour of the toolstack through its public interface.

mod heard;
mod machine;
mod plan;
mod scheduler;
mod xlcfg;
