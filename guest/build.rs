//! Link arguments of the image: they must not reach the build script itself, so they are given
//! here for the binary alone. The code generation flags are in `.cargo/config.toml`.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=unikernel.ld");
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");

    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if !flags.contains("relocation-model=static") {
        println!(
            "cargo::error=The image needs the flags of guest/.cargo/config.toml: build inside \
             guest/ and unset RUSTFLAGS, which replaces them."
        );
        return;
    }

    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo names the package's folder");
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{folder}/unikernel.ld");
}
