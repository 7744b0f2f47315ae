//! Behaviour of the toolstack through its public interface.

mod corpus;
mod guest_options;
mod heard;
mod kept;
mod machine;
mod machine_keys;
mod plan;
mod scheduler;
mod xlcfg;
