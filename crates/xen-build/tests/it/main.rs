//! Tests of the public interface, with hand-made kernels and a recording hypervisor.

mod damaged;
mod fake;
mod hvm;
mod images;
mod kernels;
mod pv;
mod pvh;
mod refused;
