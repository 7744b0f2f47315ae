//! Behaviour of the toolstack through its public interface.

mod machine;
mod plan;
mod scheduler;
mod xlcfg;
