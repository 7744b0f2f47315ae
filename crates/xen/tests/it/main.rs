//! Tests of the public interface, over a scripted hypervisor.

mod layouts;
mod probe;
mod scripted;
