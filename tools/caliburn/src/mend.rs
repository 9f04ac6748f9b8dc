//! `mend`: damaged pages made again, from dumps, archive and log.

use crate::{Outside, dumps};
use caliburn::{Mended, RestoreOptions, Until};
use caliburn_tools::{Failure, text};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `mend`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store, which no program is using: one that does calls `Store::mend`.
    store: PathBuf,
    /// A dump, or a directory of dumps.
    #[arg(long, required_unless_present = "list")]
    dumps: Option<PathBuf>,
    /// Directory with the archive of the log.
    #[arg(long)]
    archive: Option<PathBuf>,
    /// Mend nothing: list the pages that are damaged.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    outside: Outside,
    /// Print JSON, one object for each page.
    #[arg(long)]
    json: bool,
}

/// Mends a store, or lists its damage.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let store = arguments.outside.options().open(&arguments.store)?;
    if arguments.list {
        let found = store.scrub()?;
        for (segment, offset) in &found {
            match arguments.json {
                true => println!("{}", json!({"segment": segment, "offset": offset, "len": 4096})),
                false => println!("DAMAGED  {} at {offset}", text::plain(segment)),
            }
        }
        store.close()?;
        return Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let path = arguments.dumps.as_ref().ok_or("name the dumps")?;
    let mut how = RestoreOptions::new();
    arguments.archive.iter().for_each(|archive| _ = how.archive(archive));
    let mended = store.mend(&mut dumps::open(&dumps::chosen(path, Until::Latest)?)?, &how)?;
    mended.iter().for_each(|page| tell(page, arguments.json));
    store.close()?;
    let whole = mended.iter().all(|page| page.why_not.is_none());
    if !arguments.json {
        println!("{} damaged page(s), {}", mended.len(), if whole { "all mended" } else { "not all mended" });
    }
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(page: &Mended, json: bool) {
    let (segment, offset) = (&page.segment, page.offset);
    match (json, &page.why_not) {
        (true, why) => println!(
            "{}",
            json!({"segment": segment, "offset": offset, "len": page.len, "mended": why.is_none(), "why_not": why})
        ),
        (false, None) => println!("mended   {} at {offset}", text::plain(segment)),
        (false, Some(why)) => println!("DAMAGED  {} at {offset}: {why}", text::plain(segment)),
    }
}
