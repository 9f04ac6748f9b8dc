//! The Wisconsin benchmark's tests 26 to 32 with SQLite: in memory, and in WAL mode with `synchronous=FULL` on a
//! disk and in memory that is taken for persistent; a page cache as large as the data, prepared statements.

use crate::Arguments;
use caliburn_bench::target::Failure;
use caliburn_bench::wisconsin::{self, Contender, Measured, Relations, Row, rows};
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let memory = tempfile::tempdir_in(arguments.memory.clone().unwrap_or_else(wisconsin::memory))?;
    let measured = Measured { rounds: arguments.rounds, seconds: arguments.seconds, json: arguments.json };
    let sqlite: Vec<Contender> = vec![
        (("SQLite in memory", "none", "none"), Box::new(Sqlite::new(None)?)),
        (("SQLite on disk", "WAL", "power"), Box::new(Sqlite::new(Some(dir.path()))?)),
        (("SQLite on PM", "WAL", "power"), Box::new(Sqlite::new(Some(memory.path()))?)),
    ];
    wisconsin::measure(&measured, vec![sqlite, wisconsin::own(dir.path(), memory.path())?])
}

struct Sqlite {
    connection: Connection,
    path: Option<PathBuf>,
}

const NUMBERS: &str = "two, four, ten, twenty, onePercent, tenPercent, twentyPercent, fiftyPercent, unique3, \
                       evenOnePercent, oddOnePercent";

fn table(indexed: bool) -> &'static str {
    if indexed { "tenktup2" } else { "tenktup1" }
}

impl Sqlite {
    fn new(dir: Option<&Path>) -> Result<Sqlite, Failure> {
        let path = dir.map(|dir| dir.join("wisconsin.db"));
        let mut connection = Sqlite::open(path.as_deref())?;
        let numbers = NUMBERS.replace(", ", " INTEGER, ");
        for name in [false, true].map(table) {
            connection.execute_batch(&format!(
                "CREATE TABLE {name} (unique1 INTEGER NOT NULL, unique2 INTEGER NOT NULL, {numbers} INTEGER, \
                 stringu1 TEXT, stringu2 TEXT, string4 TEXT)"
            ))?;
        }
        connection.execute_batch(
            "CREATE UNIQUE INDEX first ON tenktup2 (unique1); CREATE UNIQUE INDEX second ON tenktup2 (unique2)",
        )?;
        let all = connection.transaction()?;
        for row in rows() {
            [false, true].into_iter().try_for_each(|indexed| insert(&all, indexed, &row))?;
        }
        all.commit()?;
        Ok(Sqlite { connection, path })
    }

    fn open(path: Option<&Path>) -> Result<Connection, Failure> {
        let connection = match path {
            Some(path) => Connection::open(path)?,
            None => Connection::open_in_memory()?,
        };
        connection.execute_batch("PRAGMA cache_size = -65536")?;
        if path.is_some() {
            let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
            if mode != "wal" {
                return Err(format!("the journal's mode is {mode}").into());
            }
            connection.execute_batch("PRAGMA synchronous = FULL")?;
        }
        Ok(connection)
    }

    /// Changes one row.
    fn change(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), Failure> {
        match self.connection.prepare_cached(sql)?.execute(values)? {
            1 => Ok(()),
            count => Err(format!("{sql}: {count} rows were changed").into()),
        }
    }
}

fn insert(connection: &Connection, indexed: bool, row: &Row) -> Result<(), Failure> {
    let sql = if indexed {
        "INSERT INTO tenktup2 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    } else {
        "INSERT INTO tenktup1 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    };
    let [a, b, c] = row.strings.each_ref().map(|text| std::str::from_utf8(text));
    let n = row.numbers;
    let values = params![
        row.unique1,
        row.unique2,
        n[0],
        n[1],
        n[2],
        n[3],
        n[4],
        n[5],
        n[6],
        n[7],
        n[8],
        n[9],
        n[10],
        a?,
        b?,
        c?
    ];
    connection.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

impl Relations for Sqlite {
    fn insert(&mut self, indexed: bool, row: &Row) -> Result<(), Failure> {
        insert(&self.connection, indexed, row)
    }

    fn delete(&mut self, indexed: bool, unique1: u32) -> Result<(), Failure> {
        let sql = ["DELETE FROM tenktup1 WHERE unique1 = ?", "DELETE FROM tenktup2 WHERE unique1 = ?"];
        self.change(sql[usize::from(indexed)], [unique1])
    }

    fn set_unique2(&mut self, indexed: bool, from: u32, to: u32) -> Result<(), Failure> {
        let sql = [
            "UPDATE tenktup1 SET unique2 = ? WHERE unique2 = ?",
            "UPDATE tenktup2 SET unique2 = ? WHERE unique2 = ?",
        ];
        self.change(sql[usize::from(indexed)], [to, from])
    }

    fn set_unique1(&mut self, from: u32, to: u32) -> Result<(), Failure> {
        self.change("UPDATE tenktup2 SET unique1 = ? WHERE unique1 = ?", [to, from])
    }

    fn finish(self: Box<Self>) -> Result<[[u64; 3]; 2], Failure> {
        let Sqlite { mut connection, path } = *self;
        if let Some(path) = path {
            connection.close().map_err(|(_, error)| error)?;
            connection = Sqlite::open(Some(&path))?;
        }
        let mut found = [[0; 3]; 2];
        for (name, sums) in [false, true].map(table).into_iter().zip(&mut found) {
            let sql = format!("SELECT count(*), sum(unique1), sum(unique2) FROM {name}");
            let found: [i64; 3] =
                connection.query_row(&sql, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?;
            *sums = found.map(i64::cast_unsigned);
        }
        Ok(found)
    }
}
