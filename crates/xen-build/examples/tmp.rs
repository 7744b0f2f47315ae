fn main() {
    let path = std::env::args().nth(1).unwrap();
    let t = std::time::Instant::now();
    match xen_build::KernelImage::parse(&std::fs::read(path).unwrap()) {
        Ok(k) => println!("{k:#x?}"),
        Err(e) => println!("{e}"),
    }
    println!("{:?}", t.elapsed());
}
