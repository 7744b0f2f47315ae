//! Embeds the page, if it has been built: each file as it is, and compressed for browsers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let page = root.join("../../page/dist");
    println!("cargo::rerun-if-changed={}", page.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let mut files = Vec::new();
    if page.is_dir() {
        gather(&page, &mut files)?;
    }
    files.sort();
    let mut text = String::from("pub(crate) static FILES: &[File] = &[\n");
    for (at, file) in files.iter().enumerate() {
        let path = file.strip_prefix(&page).expect("it was found there").to_string_lossy();
        let bytes = fs::read(file)?;
        let name = out.join(format!("page-{at}"));
        fs::write(&name, &bytes)?;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&bytes)?;
        let gzip = out.join(format!("page-{at}.gz"));
        fs::write(&gzip, encoder.finish()?)?;
        writeln!(
            text,
            "    File {{ path: {path:?}, bytes: include_bytes!({name:?}), gzip: include_bytes!({gzip:?}) }},"
        )
        .expect("a string takes all");
    }
    text.push_str("];\n");
    fs::write(out.join("page.rs"), text)
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
