//! A journal of an ended run whose files were cut, changed or removed: reads the intact part, with gaps in place of the
//! rest.
//!
//! An entry of the index has a checksum, and the bytes of its output have none: a changed byte in a raw file is not
//! noticed.

use crate::{
    GapReason, Item, Point,
    gap::{Gap, Why},
    log::Log,
    payloads::Payloads,
    segment::{ENTRIES_PER_READ_MAX, Intact, Segment, slot},
};
use bytes::Bytes;
use kennel_lifecycle::Timestamp;
use std::io;

const DAMAGED: Why = Why {
    reason: GapReason::Damaged,
    counted: true,
};

/// Unreadable entries, which begin here.
#[derive(Clone, Copy)]
struct Missing {
    after: u64,
    lens: Option<[u64; 2]>,
}

impl Log {
    /// Whether this error means damage; not where the whole journal is gone.
    pub(crate) fn is_damage(&self, error: &io::Error) -> bool {
        let is_damage = matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound
        );
        is_damage && self.is_closed() && self.is_there().is_ok()
    }

    /// Returns the end of this segment.
    pub(crate) fn span_end(&self, number: u32) -> Point {
        let chain = self.chain.lock();
        let span = chain.spans.iter().find(|span| span.number == number);
        span.map(|span| span.end).unwrap_or_default()
    }
}

impl Segment {
    /// Like [`Segment::intact`], despite damage: up to the last valid entry. Of a stream all of its file can be read.
    pub(crate) fn extent(&self, facts: &Payloads) -> io::Result<Intact> {
        let mut extent = Intact::before(&self.header);
        let first = self.header.first.seq;
        let (mut at, last) = (first, first + self.entries()?);
        while at < last {
            let chunk = self.index_chunk(at, last)?;
            at += chunk.len() as u64;
            chunk.iter().flatten().for_each(|entry| extent.add(entry));
        }
        let mut there = extent.end.lens;
        for (len, raw) in there.iter_mut().zip(&self.raw) {
            *len = raw.end()?.max(*len);
        }
        extent.there = Some(there);
        extent.facts_len = extent.facts_len.min(facts.end()?);
        Ok(extent)
    }

    /// Like [`Segment::read`], with gaps in place of unreadable entries.
    pub(crate) fn read_over_damage(
        &self,
        after: u64,
        mut lens: Option<[u64; 2]>,
        end: Point,
        bytes_max: usize,
        facts: &Payloads,
    ) -> io::Result<Vec<Item>> {
        let there = [self.raw[0].end()?, self.raw[1].end()?];
        let facts_there = facts.end()?;
        let most = end.seq.min(after.saturating_add(ENTRIES_PER_READ_MAX));
        let most = most.min(self.header.first.seq + self.entries()?);
        let (mut items, mut bytes, mut at) = (Vec::new(), 0usize, after);
        let mut missing = None;
        while at < most {
            for entry in self.index_chunk(at, most)? {
                let begin = Missing { after: at, lens };
                at += 1;
                let Some(entry) = entry else {
                    missing.get_or_insert(begin);
                    continue;
                };
                let stream_there = slot(entry.kind).map_or(facts_there, |stream| there[stream]);
                let follows = |stream| lens.is_none_or(|lens| lens[stream] <= entry.offset);
                let is_good = entry.end() <= stream_there
                    && match slot(entry.kind) {
                        Some(stream) => follows(stream),
                        None => !facts.is_lost(entry.offset, entry.end())?,
                    };
                if is_good {
                    bytes = bytes.saturating_add(entry.len as usize);
                    if bytes > bytes_max && !items.is_empty() {
                        return Ok(items);
                    }
                    if let Some(missing) = missing.take() {
                        let until = self.point_before(entry.seq, end)?;
                        items.push(gap(missing, until, (entry.at, entry.attempt)));
                        lens = Some(until.lens);
                    }
                    let data = match slot(entry.kind) {
                        _ if entry.len == 0 => Bytes::new(),
                        Some(stream) => self.raw[stream].read(entry.offset, entry.end())?,
                        None => facts.read(entry.offset, entry.end())?,
                    };
                    items.push(Item::Entry(entry.with(data)));
                } else {
                    missing.get_or_insert(begin);
                }
                if let (Some(stream), Some(lens)) = (slot(entry.kind), &mut lens) {
                    lens[stream] = entry.end();
                }
            }
        }
        if let Some(missing) = missing {
            let until = if at == end.seq {
                end
            } else {
                self.point_before(at + 1, end)?
            };
            items.push(gap(missing, until, (self.header.at, self.header.attempt)));
        }
        Ok(items)
    }

    /// Returns the position before the entry of this seq, by the entries from there on: of each stream the first valid
    /// one.
    fn point_before(&self, seq: u64, end: Point) -> io::Result<Point> {
        let mut found = [None; 2];
        let mut at = seq - 1;
        let last = end.seq.min(self.header.first.seq + self.entries()?);
        while at < last && found.contains(&None) {
            for entry in self.index_chunk(at, last)? {
                at += 1;
                if let Some((stream, entry)) =
                    entry.and_then(|entry| Some((slot(entry.kind)?, entry)))
                {
                    found[stream].get_or_insert(entry.offset);
                }
            }
        }
        Ok(Point {
            seq: seq - 1,
            lens: [0, 1].map(|stream| found[stream].unwrap_or(end.lens[stream])),
        })
    }
}

fn gap(missing: Missing, until: Point, follows: (Timestamp, u32)) -> Item {
    Item::Gap(Gap::between(
        missing.after,
        missing.lens,
        until,
        DAMAGED,
        follows,
    ))
}
