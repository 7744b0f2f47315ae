//! Behaviour of the toolstack through its public interface.

mod corpus;
mod guest_options;
mod heard;
mod machine;
mod plan;
mod scheduler;
mod xlcfg;
