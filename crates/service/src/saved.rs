//! Saves and restores.

use std::path::Path;

use api::{AfterSave, SavedFormat, Target};
use toolstack::config::Start;
use toolstack::saved::{self, DumpTo, FileFormat, Guest, SaveTo};
use toolstack::{Reply, Request, xlcfg};
use xen::Uuid;

use crate::configs::absolute;
use crate::{Failed, Gone, News, Progress, Service, succeeded, unexpected};

impl Service<'_> {
    pub(crate) fn save(&self, save: api::Save) -> Result<api::Reply, Failed> {
        let api::Save { target, path, cwd, after, format, file, config_text, progress } = save;
        let read = |text: String| {
            let source = xlcfg::Source { file: &file, text: &text, overrides: &[] };
            self.configuration(source, &cwd, false, true).map(Box::new)
        };
        let id = self.fresh_uuid()?;
        let to = SaveTo {
            path: absolute(Path::new(&cwd), &path),
            after: match after {
                AfterSave::Destroyed => saved::AfterSave::Destroyed,
                AfterSave::Running => saved::AfterSave::Running,
                AfterSave::Paused => saved::AfterSave::Paused,
            },
            format: match format {
                SavedFormat::Xylem => FileFormat::Xylem,
                SavedFormat::Xl => FileFormat::Xl,
            },
            config: config_text.map(read).transpose()?,
            id,
            checkpoint: None,
            disks: Vec::new(),
        };
        let request = Request::Save { target: target.0.clone(), to: Box::new(to) };
        self.save_for(target, id, request, progress.into())?;
        Ok(api::Reply::Done)
    }

    pub(crate) fn dump_core(&self, dump: api::DumpCore) -> Result<api::Reply, Failed> {
        let api::DumpCore { target, path, cwd, live, progress } = dump;
        let id = self.fresh_uuid()?;
        let path = absolute(Path::new(&cwd), &path);
        let guest = if live { Guest::RunsOn } else { Guest::Pauses };
        let to = Box::new(DumpTo { path, guest, id });
        let request = Request::Dump { target: target.0.clone(), to };
        self.save_for(target, id, request, progress.into())?;
        Ok(api::Reply::Done)
    }

    /// A save or a dump, which ends if its client hangs up.
    pub(crate) fn save_for(
        &self,
        target: Target,
        id: Uuid,
        request: Request,
        progress: Progress,
    ) -> Result<(), Failed> {
        let ask = self.request(request, progress);
        let reply = self.daemon.wait(ask, None, self.door, &mut |news| match news {
            News::Progress(far) => self.tell_far(&target.0, &far),
            News::Started { .. } | News::Told(_) => Ok(()),
        });
        match reply {
            Ok(Some(reply)) => succeeded(reply).map(drop),
            Ok(None) => Err(Failed::Gone),
            Err(Gone) => {
                // Whoever wanted it does not any more.
                self.daemon.put(Request::CancelSave { target: target.0, id });
                Err(Failed::Gone)
            }
        }
    }

    pub(crate) fn read_saved(&self, path: &str) -> Result<Box<saved::SavedFile>, Failed> {
        match self.ask(Request::ReadSaved { path: path.to_owned() })? {
            Reply::SavedFile(saved) => Ok(saved),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn restore(&self, restore: &api::Restore) -> Result<api::Reply, Failed> {
        let api::Restore { path, cwd, file, config_text, paused, warnings, progress } = restore;
        let path = absolute(Path::new(cwd), path);
        let saved = self.read_saved(&path)?;
        for warning in saved.warnings.iter().filter(|_| *warnings) {
            self.door.tell(&api::Answer::Warning(warning.clone()))?;
        }
        let config = match config_text {
            Some(text) => {
                let source = xlcfg::Source { file, text, overrides: &[] };
                self.configuration(source, cwd, false, *warnings)?
            }
            None => {
                let text = &saved.config_text;
                let source = xlcfg::Source { file: &path, text, overrides: &[] };
                self.recorded(source, cwd, *warnings)?
            }
        };
        let config = Box::new(config);
        let start = if *paused { Start::Paused } else { Start::Running };
        let vm = config.name.clone();
        self.created(&vm, Request::Restore { file: saved, config, start }, (*progress).into())
    }
}
