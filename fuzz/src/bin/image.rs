//! Saved VMs in our own format.
#![no_main]

libfuzzer_sys::fuzz_target!(init: fuzz::seeds::write("image"), |data: &[u8]| fuzz::image::run(data));
