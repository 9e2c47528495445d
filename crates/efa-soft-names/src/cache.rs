//! Reads the cache of the dynamic loader, `/etc/ld.so.cache`, in the format of glibc 2.2 and newer.
//!
//! ```text
//!   perhaps a cache in an older format, then, aligned:
//!    0  "glibc-ld.so.cache1.1" | number of entries | …        48 bytes
//!   48  entries of 24 bytes: flags | offset of the name | offset of the path | …
//!       texts, whose offsets count from the magic
//! ```

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// The paths of a library, in the cache's order. What isn't a cache has none.
pub(crate) fn find<'a>(file: &'a [u8], name: &str) -> Vec<&'a [u8]> {
    let start = file.windows(MAGIC.len()).position(|window| window == MAGIC);
    let Some(cache) = start.and_then(|start| file.get(start..)) else { return Vec::new() };
    let Some(count) = number(cache, MAGIC.len()) else { return Vec::new() };
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count);
    let paths = entries.filter_map(|entry| {
        let is_it = text(cache, number(entry, 4)?)? == name.as_bytes();
        is_it.then_some(text(cache, number(entry, 8)?)?)
    });
    paths.collect()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
    bytes.get(at..)?.split(|byte| *byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(libraries: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((libraries.len() as u32).to_le_bytes());
        bytes.resize(HEADER, 0);
        let mut texts = Vec::new();
        let first = HEADER + ENTRY * libraries.len();
        for (name, path) in libraries {
            bytes.extend([3, 3, 0, 0]);
            for text in [name, path] {
                bytes.extend(((first + texts.len()) as u32).to_le_bytes());
                texts.extend(text.bytes().chain([0]));
            }
            bytes.extend([0; 12]);
        }
        bytes.extend(texts);
        bytes
    }

    #[test]
    fn paths_of_a_name_are_found_in_their_order() {
        let entries =
            [("liba.so.1", "/opt/a/liba.so.1"), ("libb.so", "/b"), ("liba.so.1", "/usr/lib/a")];
        let file = cache(&entries);
        assert_eq!(find(&file, "liba.so.1"), [&b"/opt/a/liba.so.1"[..], b"/usr/lib/a"]);
        assert_eq!(find(&file, "liba.so"), [&b""[..]; 0]);
        let old = [b"ld.so-1.7.0\\0 and so on ", &file[..]].concat();
        assert_eq!(find(&old, "libb.so"), [b"/b"]);
    }

    #[test]
    fn damaged_cache_gives_no_path_that_is_not_in_it() {
        let file = cache(&[("liba.so.1", "/a"), ("libb.so.1", "/b")]);
        for length in 0..file.len() {
            let _ = find(&file[..length], "liba.so.1");
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0xff;
            let _ = find(&damaged, "liba.so.1");
        }
        assert_eq!(find(b"", "liba.so.1"), [&b""[..]; 0]);
    }
}
