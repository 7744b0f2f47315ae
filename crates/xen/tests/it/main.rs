//! The crate's behaviour through its public interface, over a hypervisor that answers by script.

mod layouts;
mod probe;
mod scripted;
