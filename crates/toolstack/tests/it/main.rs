//! Behaviour of the toolstack through its public interface.

mod xlcfg;
