//! Two hosts on loopback, with sockets and keys as in production.

mod hosts;
mod keys;
mod links;
mod strangers;
