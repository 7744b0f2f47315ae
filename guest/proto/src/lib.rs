//! What a guest must know about the formats it shares with Xen, the store and the backends:
//! bytes in, values out, no machine underneath, so that it is tested on any host.
//!
//! Nothing here touches memory that another domain can write: the image copies first, then asks.
//! Every value that a peer wrote is checked here, and a bad one is an error value.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod blkif;
pub mod boot;
pub mod byte_ring;
pub mod device;
pub mod frame;
pub mod netif;
pub mod options;
pub mod request_ring;
pub mod text;
pub mod xenbus;
