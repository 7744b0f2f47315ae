//! Builds the part of the lab that stays the same from run to run, and keeps it in the cache.
//!
//! The key of an image is the hash of the package files it comes from and of the sources that
//! make it, so it is built again exactly when it would differ.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::addition::Addition;
use super::cpio::Archive;
use super::packages::{self, Apt, Package};
use super::recipe::Series;
use super::{elf, host_tools, kernel, recipe};

const GUEST_INIT: &str = include_str!("../../../lab/guest-init.sh");

/// Everything that decides what an image contains, beside the packages.
const SOURCES: &[&str] = &[
    include_str!("recipe.rs"),
    include_str!("addition.rs"),
    include_str!("image.rs"),
    include_str!("cpio.rs"),
    include_str!("elf.rs"),
    include_str!("kernel.rs"),
    GUEST_INIT,
];

/// Images of about 100 MB each; a few, since checkouts may differ.
const IMAGES_KEPT: usize = 4;

/// A finished image: paths of files that exist.
#[derive(Clone, Debug)]
pub struct Image {
    /// The hypervisor as a multiboot ELF file.
    pub xen: PathBuf,
    /// dom0's kernel as an ELF file.
    pub kernel: PathBuf,
    /// dom0's root file system, without what belongs to one run.
    pub root: PathBuf,
}

/// Finds the image in the cache, or builds it.
///
/// # Errors
/// A package cannot be fetched, or does not contain what the recipe names.
pub fn prepare(series: Series) -> Result<Image> {
    host_tools::require_all()?;
    let cache = cache_directory()?;
    let machine = Apt::of_machine()?;
    let mut names = vec![machine.first_dependency(recipe::KERNEL_METAPACKAGE)?];
    names.extend(recipe::PACKAGES.iter().map(|name| (*name).to_owned()));
    let of_xen: Vec<String> = recipe::XEN_PACKAGES.iter().map(|name| series.named(name)).collect();
    let sources = match series.suite() {
        None => {
            names.extend(of_xen);
            vec![(machine, names)]
        }
        Some(suite) => vec![(machine, names), (Apt::of_suite(suite, &cache)?, of_xen)],
    };
    let mut packages = Vec::new();
    for (apt, names) in &sources {
        packages.push(apt.resolve(names)?);
    }

    let directory = cache.join("images").join(key(SOURCES, &packages.concat())?);
    if !directory.is_dir() {
        let mut files = Vec::new();
        for ((apt, names), packages) in sources.iter().zip(&packages) {
            files.extend(apt.download(names, packages, &cache.join("packages"))?);
        }
        build(&files, &directory, series)?;
        remove_old(&cache.join("images"), IMAGES_KEPT)?;
    }
    Ok(Image {
        xen: directory.join("xen"),
        kernel: directory.join("vmlinux"),
        root: directory.join("root.cpio"),
    })
}

/// Finds the archive of these additions in the cache, or builds it. They are one archive, because modprobe's
/// index is one file.
///
/// # Errors
/// As for [`prepare`].
pub(crate) fn prepare_additions(additions: &[&Addition]) -> Result<PathBuf> {
    let cache = cache_directory()?;
    let apt = Apt::of_machine()?;
    let mut names = vec![apt.first_dependency(recipe::KERNEL_METAPACKAGE)?];
    // The image's own too: a library may come from either.
    let own = recipe::PACKAGES.iter().chain(recipe::XEN_PACKAGES);
    let added = additions.iter().flat_map(|it| it.packages);
    names.extend(own.chain(added).map(|name| (*name).to_owned()));
    names.sort();
    names.dedup();
    let packages = apt.resolve(&names)?;
    let directory = cache.join("additions");
    let title: Vec<&str> = additions.iter().map(|it| it.name).collect();
    let file = directory.join(format!("{}-{}.cpio", title.join("+"), key(SOURCES, &packages)?));
    if !file.is_file() {
        eprintln!("lab: building the addition {}", file.display());
        let paths = apt.download(&names, &packages, &cache.join("packages"))?;
        let work = directory.join(format!("partial-{}", std::process::id()));
        let tree = work.join("tree");
        std::fs::create_dir_all(&tree)?;
        let built = paths
            .iter()
            .try_for_each(|package| packages::unpack(package, &tree))
            .and_then(|()| additions_from_tree(additions, &tree))
            .and_then(|archive| Ok(std::fs::write(work.join("archive"), archive)?))
            .and_then(|()| Ok(std::fs::rename(work.join("archive"), &file)?));
        std::fs::remove_dir_all(&work)?;
        built?;
    }
    Ok(file)
}

fn additions_from_tree(additions: &[&Addition], tree: &Path) -> Result<Vec<u8>> {
    let scanned = Tree::scan(tree)?;
    let mut root = Archive::default();
    let mut wanted = VecDeque::new();
    let mut spare = recipe::DOM0_SPARE_MODULES.to_vec();
    for addition in additions {
        for (name, target) in addition.links {
            root.symlink(name, target);
        }
        for program in addition.programs {
            let content = scanned.read(program)?;
            wanted.extend(elf::libraries(&content));
            root.file(&merged(program), 0o755, &content);
        }
        for folder in addition.folders {
            for path in scanned.files_under(folder) {
                root.file(path, mode(&tree.join(path))?, &read(&tree.join(path))?);
            }
        }
        spare.extend(addition.modules);
    }
    add_libraries(&mut root, &scanned, wanted)?;
    // With the image's own, because the index replaces the image's.
    Modules::scan(&scanned)?.add(&mut root, "usr/lib", recipe::DOM0_MODULES, &spare)?;
    Ok(root.finish())
}

/// The process that builds what is in a folder of this name, or did before it was killed.
fn builder(name: &str) -> Option<u32> {
    name.rsplit_once("partial-")?.1.parse().ok()
}

/// Keeps the latest images only; a running lab's is among them. What is half-built does not count, and goes with its builder.
pub(crate) fn remove_old(images: &Path, kept: usize) -> Result<()> {
    let mut dated = Vec::new();
    for entry in std::fs::read_dir(images)? {
        let entry = entry?;
        match builder(&entry.file_name().to_string_lossy()) {
            Some(process) if Path::new(&format!("/proc/{process}")).exists() => {}
            Some(_) => {
                let _ = std::fs::remove_dir_all(entry.path());
            }
            None => dated.push((entry.metadata()?.modified()?, entry.path())),
        }
    }
    dated.sort();
    dated.reverse();
    for (_, path) in dated.iter().skip(kept) {
        // Somebody else may be removing it too.
        let _ = std::fs::remove_dir_all(path);
    }
    Ok(())
}

/// `$XYLEM_LAB_CACHE`, else the user's cache folder.
///
/// # Errors
/// None of the variables that lead there is set.
pub fn cache_directory() -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("XYLEM_LAB_CACHE") {
        return Ok(directory.into());
    }
    if let Some(directory) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(Path::new(&directory).join("xylem"));
    }
    let home = std::env::var_os("HOME").context("set XYLEM_LAB_CACHE: there is no $HOME")?;
    Ok(Path::new(&home).join(".cache/xylem"))
}

/// Names what is made of these packages by these sources.
pub(crate) fn key(sources: &[&str], packages: &[Package]) -> Result<String> {
    let mut text = sources.concat();
    for package in packages {
        text += &package.file;
        text += &package.sha256;
    }
    let file = std::env::temp_dir().join(format!("xylem-lab-key-{}", std::process::id()));
    std::fs::write(&file, text)?;
    let hash = packages::sha256_of_file(&file);
    std::fs::remove_file(&file)?;
    let mut hash = hash?;
    hash.truncate(16);
    Ok(hash)
}

fn build(packages: &[PathBuf], directory: &Path, series: Series) -> Result<()> {
    eprintln!("lab: building the image {}", directory.display());
    build_beside(directory, |work| {
        let tree = work.join("tree");
        std::fs::create_dir_all(&tree)?;
        for package in packages {
            packages::unpack(package, &tree)?;
        }
        build_from_tree(&tree, work, series)?;
        Ok(std::fs::remove_dir_all(&tree)?)
    })
}

/// Builds a folder beside its final place and renames it, so that a half-built image is never used.
pub(crate) fn build_beside(
    directory: &Path,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let work = directory.with_extension(format!("partial-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let built = build(&work).and_then(|()| Ok(std::fs::rename(&work, directory)?));
    if built.is_ok() {
        return Ok(());
    }
    std::fs::remove_dir_all(&work)?;
    // Another lab may have been faster; its image is as good as ours.
    if directory.is_dir() { Ok(()) } else { built }
}

fn build_from_tree(tree: &Path, work: &Path, series: Series) -> Result<()> {
    let boot = Tree::scan(tree)?;
    let compressed = tree.join(format!("boot/xen-{}-amd64.gz", series.name()));
    std::fs::write(work.join("xen"), gunzip(&compressed)?)?;
    let bz_image = read(&boot.only_with_prefix("boot/vmlinuz-")?)?;
    std::fs::write(work.join("vmlinux"), kernel::unpack(&bz_image)?)?;

    let modules = Modules::scan(&boot)?;
    let mut root = Archive::default();
    for (name, target) in recipe::LINKS {
        root.symlink(name, &series.named(target));
    }
    add_programs(&mut root, &boot, series)?;
    for folder in recipe::FOLDERS {
        for path in boot.files_under(folder) {
            root.file(path, mode(&tree.join(path))?, &read(&tree.join(path))?);
        }
    }
    modules.add(&mut root, "usr/lib", recipe::DOM0_MODULES, recipe::DOM0_SPARE_MODULES)?;
    root.file("guest/vmlinuz", 0o644, &bz_image);
    root.file("guest/initramfs", 0o644, &guest_initramfs(&boot, &modules)?);
    root.file("guest/disk.img", 0o644, &guest_disk(work)?);
    std::fs::write(work.join("root.cpio"), root.finish())?;
    Ok(())
}

/// Programs, the libraries they need, and busybox for every other command.
fn add_programs(root: &mut Archive, tree: &Tree, series: Series) -> Result<()> {
    let mut wanted: VecDeque<String> =
        recipe::EXTRA_LIBRARIES.iter().map(|name| (*name).to_owned()).collect();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for program in recipe::PROGRAMS {
        let program = series.named(program);
        let content = tree.read(&program)?;
        let path = merged(&program);
        wanted.extend(elf::libraries(&content));
        root.file(&path, 0o755, &content);
        taken.insert(path);
    }
    taken.extend(recipe::LINKS.iter().map(|(name, _)| (*name).to_owned()));

    add_libraries(root, tree, wanted)?;

    for applet in busybox_applets(tree)? {
        if taken.contains(&format!("usr/bin/{applet}")) {
            continue;
        }
        if taken.contains(&format!("usr/sbin/{applet}")) {
            continue;
        }
        root.symlink(&format!("usr/bin/{applet}"), "busybox");
    }
    // The kernel runs these by their full names.
    root.symlink("usr/sbin/poweroff", "../bin/busybox");
    root.symlink("usr/sbin/reboot", "../bin/busybox");
    Ok(())
}

/// The libraries `wanted` and those that they need.
fn add_libraries(root: &mut Archive, tree: &Tree, mut wanted: VecDeque<String>) -> Result<()> {
    let libraries = tree.libraries();
    let mut seen = BTreeSet::new();
    while let Some(name) = wanted.pop_front() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let path = libraries
            .get(&name)
            .with_context(|| format!("the lab's recipe names no package with {name}"))?;
        let content = read(path)?;
        wanted.extend(elf::libraries(&content));
        root.file(&format!("usr/lib/x86_64-linux-gnu/{name}"), 0o755, &content);
    }
    Ok(())
}

fn guest_initramfs(tree: &Tree, modules: &Modules) -> Result<Vec<u8>> {
    let mut root = Archive::default();
    root.character_device("dev/console", 5, 1);
    root.file("init", 0o755, GUEST_INIT.as_bytes());
    root.file("bin/busybox", 0o755, &tree.read("bin/busybox")?);
    for applet in busybox_applets(tree)? {
        if applet != "busybox" {
            root.symlink(&format!("bin/{applet}"), "busybox");
        }
    }
    // The kernel runs these when control/shutdown says so; the plain applets would only ask
    // init, which is a script and has other things to do.
    for action in ["poweroff", "reboot"] {
        let script = format!(
            "#!/bin/sh\necho 'XYLEM-GUEST: shutdown={action}' >/dev/console\n\
             umount -a -r 2>/dev/null\nexec /bin/busybox {action} -f\n"
        );
        root.file(&format!("sbin/{action}"), 0o755, script.as_bytes());
    }
    modules.add(&mut root, "lib", recipe::GUEST_MODULES, recipe::GUEST_SPARE_MODULES)?;
    Ok(root.finish())
}

/// A small ext4 file system that says what it is.
fn guest_disk(work: &Path) -> Result<Vec<u8>> {
    let content = work.join("disk");
    std::fs::create_dir_all(&content)?;
    std::fs::write(content.join("hello.txt"), format!("{}\n", recipe::DISK_TEXT))?;
    let image = work.join("disk.img");
    std::fs::File::create(&image)?.set_len(recipe::DISK_BYTES)?;
    let program = host_tools::find("mke2fs").context("mke2fs is missing")?;
    let status = Command::new(program)
        .args(["-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum", "-L", "xylem", "-d"])
        .args([&content, &image])
        .stdout(Stdio::null())
        .status()
        .context("mke2fs does not start")?;
    ensure!(status.success(), "mke2fs cannot make the guests' disk image");
    let bytes = read(&image)?;
    std::fs::remove_file(&image)?;
    std::fs::remove_dir_all(&content)?;
    Ok(bytes)
}

/// Every file of the unpacked packages, by its path from the root.
struct Tree {
    root: PathBuf,
    paths: BTreeSet<String>,
}

impl Tree {
    fn scan(root: &Path) -> Result<Self> {
        let mut paths = BTreeSet::new();
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in std::fs::read_dir(&directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    pending.push(entry.path());
                } else if let Some(path) = entry.path().strip_prefix(root)?.to_str() {
                    paths.insert(path.to_owned());
                }
            }
        }
        Ok(Self { root: root.to_owned(), paths })
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        ensure!(self.paths.contains(path), "no package of the lab's recipe contains /{path}");
        read(&self.root.join(path))
    }

    fn files_under<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        let is_inside = move |path: &&String| {
            path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        self.paths.iter().filter(is_inside).map(String::as_str)
    }

    fn only_with_prefix(&self, prefix: &str) -> Result<PathBuf> {
        let mut found = self.paths.iter().filter(|path| path.starts_with(prefix));
        let path = found.next().with_context(|| format!("no package contains /{prefix}*"))?;
        ensure!(found.next().is_none(), "several packages contain /{prefix}*");
        Ok(self.root.join(path))
    }

    /// Shared libraries by file name.
    fn libraries(&self) -> BTreeMap<String, PathBuf> {
        let is_library_folder =
            |folder: &str| matches!(folder, "lib/x86_64-linux-gnu" | "usr/lib/x86_64-linux-gnu");
        self.paths
            .iter()
            .filter_map(|path| path.rsplit_once('/').map(|(folder, name)| (path, folder, name)))
            .filter(|(_, folder, name)| is_library_folder(folder) && name.contains(".so"))
            .map(|(path, _, name)| (name.to_owned(), self.root.join(path)))
            .collect()
    }
}

/// Kernel modules by name, `-` written as `_`.
struct Modules {
    /// What `uname -r` will say: the folder that modprobe looks in.
    release: String,
    paths: BTreeMap<String, PathBuf>,
}

impl Modules {
    fn scan(tree: &Tree) -> Result<Self> {
        let mut release = None;
        let mut paths = BTreeMap::new();
        for path in tree.files_under("lib/modules").filter(|path| path.ends_with(".ko")) {
            release = path.split('/').nth(2);
            let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".ko");
            paths.insert(name.replace('-', "_"), tree.root.join(path));
        }
        let release = release.context("the kernel package has no modules")?.to_owned();
        Ok(Self { release, paths })
    }

    /// Adds the modules `loaded` and `spare`, what they depend on, modprobe's index, and
    /// `/modules`, the list of those to load at boot.
    fn add(
        &self,
        archive: &mut Archive,
        library_folder: &str,
        loaded: &[&str],
        spare: &[&str],
    ) -> Result<()> {
        let folder = format!("{library_folder}/modules/{}", self.release);
        let mut index = String::new();
        for name in self.with_dependencies(loaded.iter().chain(spare))? {
            // The emulated kernel would spend longer on the signature than on all the rest.
            let module = read(&self.paths[&name])?;
            let content = elf::without_module_signature(&module);
            archive.file(&format!("{folder}/{name}.ko"), 0o644, content);
            let mut needed = self.with_dependencies([name.as_str()].iter())?;
            needed.pop();
            // The nearest first: modprobe loads from the end.
            let needed: Vec<String> =
                needed.iter().rev().map(|dependency| format!(" {dependency}.ko")).collect();
            index += &format!("{name}.ko:{}\n", needed.concat());
        }
        archive.file(&format!("{folder}/modules.dep"), 0o644, index.as_bytes());
        archive.file("modules", 0o644, (loaded.join("\n") + "\n").as_bytes());
        Ok(())
    }

    /// `names` and all that they depend on, each after what it depends on.
    fn with_dependencies<'a>(
        &self,
        names: impl Iterator<Item = &'a &'a str>,
    ) -> Result<Vec<String>> {
        let mut order = Vec::new();
        for name in names {
            self.collect(&name.replace('-', "_"), &mut order)?;
        }
        Ok(order)
    }

    fn collect(&self, name: &str, order: &mut Vec<String>) -> Result<()> {
        if order.iter().any(|taken| taken == name) {
            return Ok(());
        }
        let path = self.paths.get(name).with_context(|| format!("no kernel module {name}"))?;
        let depends = elf::module_info(&read(path)?, "depends").unwrap_or_default();
        let unnamed = recipe::MODULE_DEPENDENCIES.iter().filter(|(module, _)| *module == name);
        let named = depends.split(',').filter(|dependency| !dependency.is_empty());
        for dependency in named.chain(unnamed.map(|(_, dependency)| *dependency)) {
            self.collect(&dependency.replace('-', "_"), order)?;
        }
        order.push(name.to_owned());
        Ok(())
    }
}

fn busybox_applets(tree: &Tree) -> Result<Vec<String>> {
    let output = Command::new(tree.root.join("bin/busybox"))
        .arg("--list")
        .output()
        .context("busybox does not start")?;
    ensure!(output.status.success(), "busybox does not list its commands");
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Where a path is once `/bin` and `/sbin` are links into `/usr`, as on every Debian 12.
fn merged(path: &str) -> String {
    if path.starts_with("usr/") { path.to_owned() } else { format!("usr/{path}") }
}

pub(crate) fn gunzip(path: &Path) -> Result<Vec<u8>> {
    let output =
        Command::new("gzip").args(["-dc"]).arg(path).output().context("gzip does not start")?;
    ensure!(output.status.success(), "gzip cannot unpack {}", path.display());
    Ok(output.stdout)
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn mode(path: &Path) -> Result<u32> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_a_killed_process_left_half_built_are_removed_and_take_no_place() {
        let images = std::env::temp_dir().join(format!("xylem-images-{}", std::process::id()));
        let ours = format!("partial-{}", std::process::id());
        // No process has this number: the kernel's limit is 2^22.
        for name in ["one", "two", &ours, "three.partial-4194305"] {
            std::fs::create_dir_all(images.join(name)).unwrap();
        }
        remove_old(&images, 2).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&images)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        std::fs::remove_dir_all(&images).unwrap();
        assert_eq!(left, ["one", &ours, "two"]);
    }
}
