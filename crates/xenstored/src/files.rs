//! Files opened while the daemon is still root, for the user that it becomes.
//!
//! A folder writable by this user may contain links to root's files. So such a file is opened with
//! the user's own rights, which also apply to links. Elsewhere root opens the file and changes its
//! owner by descriptor, never by path.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rustix::fs::{Mode, OFlags, fchown, fstat};
use rustix::io::Errno;

use crate::confinement::Account;

/// Sticky bit of a folder: only owners may remove files.
const STICKY: u32 = 0o1000;
/// Writable by others than the owner.
const SHARED: u32 = 0o022;
/// Most links in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// What to do with existing content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Content {
    Replaced,
    Kept,
}

/// Who may have placed a link in a path.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Way {
    /// Only root.
    OfRoot,
    /// Anyone, but only in the last folder.
    Shared,
    /// The daemon's user.
    OfAccount,
    /// Another user, in this folder.
    OfOthers(PathBuf),
}

/// Opens a file for writing, which `account` will continue to write.
pub(crate) fn open(
    path: &Path,
    content: Content,
    account: Option<Account>,
) -> anyhow::Result<File> {
    if !rustix::process::geteuid().is_root() {
        return Ok(open_as_it_is(path, content)?);
    }
    let file = match (way_to(path, account)?, account) {
        (Way::OfRoot, _) => open_as_it_is(path, content)?,
        (Way::OfAccount, Some(account)) => account.act(|| open_as_it_is(path, content))?,
        (Way::OfOthers(folder), Some(_)) => {
            bail!("{} is another user's, who could put a link there", folder.display())
        }
        (Way::Shared | Way::OfAccount | Way::OfOthers(_), _) => {
            open_no_link(path, content, account)?
        }
    };
    if let Some(account) = account {
        let found = file.metadata()?;
        // Terminals, files with further links and the like are written, but keep their owner.
        if found.is_file() && found.nlink() == 1 && found.uid() == 0 {
            fchown(&file, Some(account.uid()), Some(account.gid()))?;
        }
    }
    Ok(file)
}

fn options(content: Content) -> OpenOptions {
    let mut options = OpenOptions::new();
    match content {
        Content::Replaced => options.write(true).truncate(true).create(true),
        Content::Kept => options.append(true).create(true),
    };
    // A pipe without a reader is an error instead of blocking.
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options
}

fn open_as_it_is(path: &Path, content: Content) -> std::io::Result<File> {
    options(content).open(path)
}

/// Opens a file of root's or the account's in a world-writable folder.
fn open_no_link(path: &Path, content: Content, account: Option<Account>) -> anyhow::Result<File> {
    // Do not truncate it before its owner is known.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options(Content::Kept).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    let is_known =
        found.uid() == 0 || account.is_some_and(|account| account.uid().as_raw() == found.uid());
    ensure!(
        found.is_file() && found.nlink() == 1 && is_known,
        "others may write to its folder, and it is not a file of the daemon's"
    );
    if content == Content::Replaced {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Who may have placed a link in `path`, including its last component.
fn way_to(path: &Path, account: Option<Account>) -> anyhow::Result<Way> {
    let is_accounts =
        |found: &Metadata| account.is_some_and(|account| account.uid().as_raw() == found.uid());
    let mut rest = parts(path.parent().context("it has no folder")?);
    let mut folder = PathBuf::from("/");
    let mut links = 0;
    loop {
        let found = folder.symlink_metadata()?;
        let is_shared = found.uid() == 0 && found.mode() & STICKY != 0;
        if is_accounts(&found) {
            return Ok(Way::OfAccount);
        }
        if found.uid() != 0 || (found.mode() & SHARED != 0 && !is_shared) {
            return Ok(Way::OfOthers(folder));
        }
        let Some(part) = rest.pop_front() else {
            return Ok(if is_shared { Way::Shared } else { Way::OfRoot });
        };
        let next = folder.join(&part);
        let found = next.symlink_metadata().with_context(|| next.display().to_string())?;
        if found.is_symlink() {
            links += 1;
            ensure!(links <= LINKS_MAX, "there are too many links on the way");
            if found.uid() != 0 {
                return Ok(Way::OfOthers(folder));
            }
            let target = next.read_link()?;
            if target.is_absolute() {
                folder = PathBuf::from("/");
            }
            let mut before = parts(&target);
            before.append(&mut rest);
            rest = before;
        } else if part == ".." {
            folder.pop();
        } else {
            folder = next;
        }
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let words = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    words.collect()
}

/// Gives the account its folder, creating it if it is missing.
pub(crate) fn give_folder(path: &Path, account: Account) -> anyhow::Result<()> {
    let context = || format!("cannot give the folder {} to the daemon's user", path.display());
    if !rustix::process::geteuid().is_root() {
        return std::fs::create_dir_all(path).with_context(context);
    }
    make_and_give(path, account).with_context(context)
}

fn make_and_give(path: &Path, account: Account) -> anyhow::Result<()> {
    let there = path.ancestors().find(|folder| folder.symlink_metadata().is_ok());
    // Check first: links in the path determine where root would create it.
    let first = there.context("there is no root folder")?;
    match way_to(&first.join("."), Some(account))? {
        Way::OfOthers(folder) => bail!("{} is another user's", folder.display()),
        Way::OfAccount => {
            // The account creates the folder itself; existing ones are not given to it.
            account.act(|| std::fs::create_dir_all(path))?;
            let found = account.act(|| std::fs::metadata(path))?;
            ensure!(
                found.is_dir() && found.uid() == account.uid().as_raw(),
                "a link of the user's leads there"
            );
            return Ok(());
        }
        Way::OfRoot | Way::Shared => std::fs::create_dir_all(path)?,
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())
        .context("it is not a folder, or a link to one")?;
    let found = fstat(&folder)?;
    if found.st_uid == account.uid().as_raw() {
        return Ok(());
    }
    let is_shared = found.st_mode & (STICKY | SHARED) != 0;
    let is_the_systems = path.components().count() <= 2;
    ensure!(
        !is_shared && !is_the_systems && found.st_uid == 0,
        "others use it; give the daemon a folder of its own"
    );
    Ok(fchown(&folder, Some(account.uid()), Some(account.gid()))?)
}

/// Gives the account a file in its folder that a daemon running as root left there. `is_ours` judges
/// its content. Other files stay as they are, and a missing one is no error.
pub(crate) fn give_file(
    path: &Path,
    account: Account,
    is_ours: impl FnOnce(&File) -> bool,
) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (folder, name) = path.parent().zip(path.file_name()).context("it has no folder")?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = account.act(|| rustix::fs::open(folder, flags, Mode::empty()))?;
    // A link on the way leads to a folder of another's, where this file is not ours to give.
    if fstat(&folder)?.st_uid != account.uid().as_raw() {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 && found.uid() == 0 && is_ours(&file) {
        fchown(&file, Some(account.uid()), Some(account.gid()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A temporary folder in a world-writable one.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("files-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).expect("the folder is ours");
        }
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_link_of_the_users_leads_to_nothing_of_roots() {
        if !is_root() {
            return;
        }
        let place = Place::new("link");
        let account = Account::find("65534:65534").unwrap();
        let (victim, run) = (place.0.join("victim"), place.0.join("run"));
        std::fs::write(&victim, "root's").unwrap();
        std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::create_dir(&run).unwrap();
        give_folder(&run, account).unwrap();
        assert_eq!(run.metadata().unwrap().uid(), 65534);
        for content in [Content::Replaced, Content::Kept] {
            let link = run.join("pid");
            symlink(&victim, &link).unwrap();
            assert!(open(&link, content, Some(account)).is_err(), "{content:?}");
            // Nor if the daemon stays root, in a user's folder.
            assert!(open(&link, content, None).is_err(), "{content:?}");
            std::fs::remove_file(&link).unwrap();
            std::fs::hard_link(&victim, &link).unwrap();
            assert!(open(&link, content, Some(account)).is_err(), "{content:?}");
            assert!(open(&link, content, None).is_err(), "{content:?}");
            std::fs::remove_file(&link).unwrap();
        }
        // A folder of root's behind a user's link, existing and missing.
        std::fs::create_dir_all(place.0.join("behind/there")).unwrap();
        symlink(place.0.join("behind"), run.join("way")).unwrap();
        for last in ["there", "missing"] {
            assert!(give_folder(&run.join("way").join(last), account).is_err(), "{last}");
        }
        assert_eq!(place.0.join("behind/there").metadata().unwrap().uid(), 0);
        assert!(!place.0.join("behind/missing").exists());
        // A pipe without a reader does not block.
        let pipe = run.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .unwrap();
        assert!(open(&pipe, Content::Kept, Some(account)).is_err());
        // The user's folder itself is a link.
        let elsewhere = place.0.join("roots");
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, run.join("sub")).unwrap();
        assert!(open(&run.join("sub/pid"), Content::Replaced, Some(account)).is_err());
        assert!(give_folder(&run.join("sub"), account).is_err());
        assert_eq!(elsewhere.metadata().unwrap().uid(), 0);
        assert_eq!(
            (victim.metadata().unwrap().uid(), &*std::fs::read_to_string(&victim).unwrap()),
            (0, "root's")
        );
    }

    #[test]
    fn the_user_gets_the_files_that_it_writes_to() {
        if !is_root() {
            return;
        }
        let place = Place::new("gets");
        let account = Account::find("65534:65534").unwrap();
        let run = place.0.join("run");
        give_folder(&run, account).unwrap();
        for (path, content) in [
            (run.join("pid"), Content::Replaced),
            (run.join("trace"), Content::Kept),
            // In a folder of root's.
            (place.0.join("pid"), Content::Replaced),
        ] {
            drop(open(&path, content, Some(account)).unwrap());
            assert_eq!(path.metadata().unwrap().uid(), 65534, "{}", path.display());
        }
    }

    #[test]
    fn a_file_of_roots_is_given_only_if_it_is_the_daemons_and_in_the_users_folder() {
        if !is_root() {
            return;
        }
        let place = Place::new("left");
        let account = Account::find("65534:65534").unwrap();
        let (run, other) = (place.0.join("run"), place.0.join("other"));
        give_folder(&run, account).unwrap();
        std::fs::create_dir(&other).unwrap();
        symlink(&other, run.join("way")).unwrap();
        for name in ["run/journal", "run/not-ours", "other/twice", "other/journal", "other/linked"]
        {
            std::fs::write(place.0.join(name), "ours").unwrap();
        }
        std::fs::hard_link(other.join("twice"), run.join("twice")).unwrap();
        symlink(other.join("linked"), run.join("linked")).unwrap();
        for (name, is_ours, given) in [
            ("run/journal", true, true),
            ("run/not-ours", false, false),
            ("run/twice", true, false),
            ("run/linked", true, false),
            ("run/way/journal", true, false),
            ("other/journal", true, false),
        ] {
            let path = place.0.join(name);
            give_file(&path, account, |_| is_ours).unwrap();
            assert_eq!(path.metadata().unwrap().uid() == 65534, given, "{name}");
        }
        give_file(&run.join("missing"), account, |_| true).unwrap();
    }

    #[test]
    fn a_folder_that_others_use_is_not_given_away() {
        if !is_root() {
            return;
        }
        let place = Place::new("shared");
        let account = Account::find("65534:65534").unwrap();
        for mode in [0o1777, 0o777, 0o775, 0o1755] {
            let folder = place.0.join(format!("{mode:o}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
            let refused = give_folder(&folder, account).unwrap_err();
            assert!(format!("{refused:#}").contains("a folder of its own"), "{refused:#}");
        }
        assert!(give_folder(Path::new("/run"), account).is_err());
        assert!(give_folder(Path::new("/"), account).is_err());
        assert_eq!(Path::new("/run").metadata().unwrap().uid(), 0);
    }
}
