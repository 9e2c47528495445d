//! Writes shared objects whose functions jump through a table of another object.
//!
//! ```text
//!   at 0          ELF header │ program headers │ .hash .dynsym .dynstr .gnu.version .gnu.version_d .rela.dyn .text
//!   at DATA       .dynamic .got                          (the same pages of the file, mapped again for writing)
//!   not mapped    .shstrtab │ section headers
//! ```
//!
//! The one relocation fills `.got` with the address of the table; function *n* of the object jumps to what its
//! entry *n* points to. See the System V ABI, chapters 4 and 5, its supplements for the processors, and
//! `Elf64_Verdef` in the Linux Standard Base.

use std::fs::File;
use std::io::{self, Read as _};

const HEADER_LENGTH: usize = 64;
const PROGRAM_HEADER_LENGTH: usize = 56;
const SECTION_HEADER_LENGTH: usize = 64;
const SYMBOL_LENGTH: usize = 24;
/// The largest page of the processors here. What is written at run time starts this much behind its place in the
/// file.
const DATA: u64 = 0x1_0000;

/// A processor that functions can be written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    /// The processor that this program runs on, by the header of its file.
    ///
    /// # Errors
    /// If the file can't be read, or the processor is another one.
    pub(crate) fn of_this_program() -> io::Result<Self> {
        let mut header = [0; HEADER_LENGTH];
        File::open("/proc/self/exe")?.read_exact(&mut header)?;
        Self::from_header(&header).ok_or_else(|| {
            let message = "libraries are written for x86-64 and little-endian 64-bit Arm alone";
            io::Error::new(io::ErrorKind::Unsupported, message)
        })
    }

    fn from_header(header: &[u8; HEADER_LENGTH]) -> Option<Self> {
        let [0x7f, b'E', b'L', b'F', 2, 1, ..] = *header else { return None };
        let number = u16::from_le_bytes([header[18], header[19]]);
        [Self::X86_64, Self::Aarch64].into_iter().find(|processor| processor.number() == number)
    }

    /// `e_machine`
    fn number(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }

    /// The type of the relocation that stores the address of a symbol (`GLOB_DAT`).
    fn address_of_symbol(self) -> u64 {
        match self {
            Self::X86_64 => 6,
            Self::Aarch64 => 1025,
        }
    }

    /// Code at address `at` that jumps to what entry `index` of a table points to; the address of the table is at
    /// `got`. It changes only the register that calls through a linkage table may change.
    fn jump(self, at: u64, got: u64, index: usize) -> [u8; JUMP_LENGTH] {
        let entry = 8 * index as u32;
        let mut code = [0; JUMP_LENGTH];
        match self {
            Self::X86_64 => {
                // endbr64; mov r11, [rip + distance]; jmp [r11 + entry]
                let distance = (got - (at + 11)) as u32;
                code[..4].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
                code[4..7].copy_from_slice(&[0x4c, 0x8b, 0x1d]);
                code[7..11].copy_from_slice(&distance.to_le_bytes());
                code[11..14].copy_from_slice(&[0x41, 0xff, 0xa3]);
                code[14..18].copy_from_slice(&entry.to_le_bytes());
            }
            Self::Aarch64 => {
                // bti c; ldr x16, [pc + distance]; ldr x16, [x16, entry]; br x16
                let distance = ((got - (at + 4)) / 4) as u32;
                let words = [
                    0xd503_245f,
                    0x5800_0010 | (distance & 0x7_ffff) << 5,
                    0xf940_0210 | (entry / 8) << 10,
                    0xd61f_0200_u32,
                ];
                for (bytes, word) in code.chunks_exact_mut(4).zip(words) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        code
    }
}

/// Bytes between the functions.
const JUMP_LENGTH: usize = 32;

/// A version of symbols, and the functions that have it as their default version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    /// Name of the version, as `IBVERBS_1.1`.
    pub(crate) name: &'static str,
    /// Name of the version that this one adds to.
    pub(crate) parent: Option<&'static str>,
    pub(crate) functions: &'static [&'static str],
}

/// A shared object to be written.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// The name that programs ask for (`DT_SONAME`).
    pub(crate) soname: &'a str,
    /// Objects that are searched after this one, in this order, and without which loading fails.
    pub(crate) needed: &'a [String],
    /// Objects that are searched *before* this one, as far as they exist.
    pub(crate) auxiliary: &'a [String],
    /// Name of the table of function pointers.
    pub(crate) table: &'a str,
    /// Index of this object's first function in the table.
    pub(crate) first: usize,
    pub(crate) versions: &'a [Version],
}

/// Tags of the dynamic section.
mod tag {
    pub(super) const NEEDED: u64 = 1;
    pub(super) const HASH: u64 = 4;
    pub(super) const STRTAB: u64 = 5;
    pub(super) const SYMTAB: u64 = 6;
    pub(super) const RELA: u64 = 7;
    pub(super) const RELASZ: u64 = 8;
    pub(super) const RELAENT: u64 = 9;
    pub(super) const STRSZ: u64 = 10;
    pub(super) const SYMENT: u64 = 11;
    pub(super) const SONAME: u64 = 14;
    pub(super) const VERSYM: u64 = 0x6fff_fff0;
    pub(super) const VERDEF: u64 = 0x6fff_fffc;
    pub(super) const VERDEFNUM: u64 = 0x6fff_fffd;
    pub(super) const AUXILIARY: u64 = 0x7fff_fffd;
}

/// Types of sections.
mod kind {
    pub(super) const PROGBITS: u32 = 1;
    pub(super) const STRTAB: u32 = 3;
    pub(super) const RELA: u32 = 4;
    pub(super) const HASH: u32 = 5;
    pub(super) const DYNAMIC: u32 = 6;
    pub(super) const DYNSYM: u32 = 11;
    pub(super) const VERDEF: u32 = 0x6fff_fffd;
    pub(super) const VERSYM: u32 = 0x6fff_ffff;
}

/// Flags of sections and segments.
mod flag {
    pub(super) const SECTION_WRITE: u64 = 1;
    pub(super) const SECTION_LOADED: u64 = 2;
    pub(super) const SECTION_CODE: u64 = 4;
    pub(super) const READ_CODE: u32 = 5;
    pub(super) const READ_WRITE: u32 = 6;
}

/// Zero-terminated texts, each at an offset.
#[derive(Debug)]
struct Strings(Vec<u8>);

impl Strings {
    /// The empty text is at offset 0.
    fn new() -> Self {
        Self(vec![0])
    }

    fn add(&mut self, text: &str) -> u32 {
        let offset = self.0.len() as u32;
        self.0.extend(text.bytes());
        self.0.push(0);
        offset
    }
}

/// The hash of a name in symbol tables and version definitions.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0_u32, |sum, byte| {
        let sum = (sum << 4).wrapping_add(byte.into());
        let high = sum & 0xf000_0000;
        (sum ^ (high >> 24)) & !high
    })
}

/// Collects little-endian numbers.
trait Put {
    fn put16(&mut self, number: u16);
    fn put32(&mut self, number: u32);
    fn put64(&mut self, number: u64);

    fn put64s(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|&number| self.put64(number));
    }
}

impl Put for Vec<u8> {
    fn put16(&mut self, number: u16) {
        self.extend(number.to_le_bytes());
    }

    fn put32(&mut self, number: u32) {
        self.extend(number.to_le_bytes());
    }

    fn put64(&mut self, number: u64) {
        self.extend(number.to_le_bytes());
    }
}

/// A section of the file.
#[derive(Debug)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    /// Index of the section with its names, or of the symbol table.
    link: u32,
    /// What it means depends on the kind.
    info: u32,
    entry: u64,
    bytes: Vec<u8>,
}

impl Section {
    fn new(name: &'static str, kind: u32, link: u32, entry: u64, bytes: Vec<u8>) -> Self {
        Self { name, kind, flags: flag::SECTION_LOADED, link, info: 0, entry, bytes }
    }
}

/// Sections by their index in the file; 0 is none.
mod index {
    pub(super) const HASH: usize = 1;
    pub(super) const DYNSYM: usize = 2;
    pub(super) const DYNSTR: usize = 3;
    pub(super) const VERSYM: usize = 4;
    pub(super) const VERDEF: usize = 5;
    pub(super) const RELA: usize = 6;
    pub(super) const TEXT: usize = 7;
    pub(super) const DYNAMIC: usize = 8;
    pub(super) const GOT: usize = 9;
    pub(super) const NAMES: usize = 10;
    pub(super) const COUNT: usize = 11;
}

/// Where sections are in the file, by [`index`].
struct Places([u64; index::COUNT]);

impl Places {
    fn of(sections: &[Section]) -> Self {
        let mut places = [0; index::COUNT];
        let mut end = (HEADER_LENGTH + PROGRAM_HEADERS * PROGRAM_HEADER_LENGTH) as u64;
        for (place, section) in places.iter_mut().skip(1).zip(sections) {
            *place = end.next_multiple_of(JUMP_LENGTH as u64);
            end = *place + section.bytes.len() as u64;
        }
        places[index::NAMES] = end;
        Self(places)
    }

    fn in_file(&self, index: usize) -> u64 {
        self.0[index]
    }

    /// The address, counted from where the object is mapped.
    fn address(&self, index: usize) -> u64 {
        let place = self.0[index];
        if index < index::DYNAMIC { place } else { place + DATA }
    }
}

const PROGRAM_HEADERS: usize = 4;

impl Object<'_> {
    /// The bytes of the file.
    pub(crate) fn write(&self, processor: Processor) -> Vec<u8> {
        let mut strings = Strings::new();
        let soname = strings.add(self.soname);
        let definitions = self.version_definitions(soname, &mut strings);
        let table = strings.add(self.table);
        let functions: Vec<Function> = (2..)
            .zip(self.versions)
            .flat_map(|(version, node)| node.functions.iter().map(move |name| (version, *name)))
            .map(|(version, name)| Function { name, offset: strings.add(name), version })
            .collect();
        let mut entries = vec![(tag::SONAME, soname)];
        entries.extend(self.needed.iter().map(|path| (tag::NEEDED, strings.add(path))));
        entries.extend(self.auxiliary.iter().map(|path| (tag::AUXILIARY, strings.add(path))));

        let section = Section::new;
        let (dynsym, dynstr) = (index::DYNSYM as u32, index::DYNSTR as u32);
        let mut sections = vec![
            section(".hash", kind::HASH, dynsym, 4, hash_table(&functions)),
            section(".dynsym", kind::DYNSYM, dynstr, SYMBOL_LENGTH as u64, Vec::new()),
            section(".dynstr", kind::STRTAB, 0, 0, strings.0),
            section(".gnu.version", kind::VERSYM, dynsym, 2, version_numbers(&functions)),
            section(".gnu.version_d", kind::VERDEF, dynstr, 0, definitions),
            section(".rela.dyn", kind::RELA, dynsym, 24, Vec::new()),
            section(".text", kind::PROGBITS, 0, 0, vec![0; JUMP_LENGTH * functions.len()]),
            section(".dynamic", kind::DYNAMIC, dynstr, 16, Vec::new()),
            section(".got", kind::PROGBITS, 0, 8, vec![0; 8]),
        ];
        sections[index::DYNSYM - 1].info = 1;
        sections[index::VERDEF - 1].info = self.definitions();
        sections[index::TEXT - 1].flags |= flag::SECTION_CODE;
        sections[index::DYNAMIC - 1].flags |= flag::SECTION_WRITE;
        sections[index::GOT - 1].flags |= flag::SECTION_WRITE;
        // The second time the places are right: lengths don't depend on them.
        let mut places = Places([0; index::COUNT]);
        for _ in 0..2 {
            let strings = sections[index::DYNSTR - 1].bytes.len() as u64;
            let dynamic = self.dynamic_section(&entries, &places, strings, !functions.is_empty());
            sections[index::DYNAMIC - 1].bytes = dynamic;
            sections[index::DYNSYM - 1].bytes = symbol_table(table, &functions, &places);
            sections[index::RELA - 1].bytes = relocations(processor, &places);
            places = Places::of(&sections);
        }
        let got = places.address(index::GOT);
        let code = (0..functions.len()).flat_map(|number| {
            let at = places.address(index::TEXT) + (JUMP_LENGTH * number) as u64;
            processor.jump(at, got, self.first + number)
        });
        sections[index::TEXT - 1].bytes = code.collect();
        assemble(processor, &sections, &places)
    }

    /// The number of version definitions: that of the file itself, and one for each version.
    fn definitions(&self) -> u32 {
        self.versions.len() as u32 + 1
    }

    /// `.gnu.version_d`: the file's own name as version 1, then the versions.
    fn version_definitions(&self, soname: u32, strings: &mut Strings) -> Vec<u8> {
        const BASE: u16 = 1;
        const DEFINITION_LENGTH: u32 = 20;
        const NAME_LENGTH: u32 = 8;
        let offsets: Vec<(&str, u32)> =
            self.versions.iter().map(|node| (node.name, strings.add(node.name))).collect();
        let offset_of =
            |name| offsets.iter().find(|(known, _)| *known == name).map(|found| found.1);
        let mut bytes = Vec::new();
        let mut define = |index: u16, flags, name: &str, offsets: &[u32], is_last: bool| {
            bytes.put16(1);
            bytes.put16(flags);
            bytes.put16(index);
            bytes.put16(offsets.len() as u16);
            bytes.put32(hash(name));
            bytes.put32(DEFINITION_LENGTH);
            let length = DEFINITION_LENGTH + NAME_LENGTH * offsets.len() as u32;
            bytes.put32(if is_last { 0 } else { length });
            for (position, offset) in offsets.iter().enumerate() {
                bytes.put32(*offset);
                bytes.put32(if position + 1 == offsets.len() { 0 } else { NAME_LENGTH });
            }
        };
        define(1, BASE, self.soname, &[soname], self.versions.is_empty());
        for (index, (node, (_, name))) in (2..).zip(self.versions.iter().zip(&offsets)) {
            let parent = node.parent.and_then(offset_of);
            let names: Vec<u32> = [*name].into_iter().chain(parent).collect();
            define(index, 0, node.name, &names, u32::from(index) == self.definitions());
        }
        bytes
    }

    fn dynamic_section(
        &self,
        entries: &[(u64, u32)],
        places: &Places,
        strings: u64,
        has_functions: bool,
    ) -> Vec<u8> {
        // Without functions nothing needs the table, so the loader must not look for it.
        let relocations = if has_functions { 24 } else { 0 };
        let of_sections = [
            (tag::HASH, places.address(index::HASH)),
            (tag::SYMTAB, places.address(index::DYNSYM)),
            (tag::SYMENT, SYMBOL_LENGTH as u64),
            (tag::STRTAB, places.address(index::DYNSTR)),
            (tag::STRSZ, strings),
            (tag::RELA, places.address(index::RELA)),
            (tag::RELASZ, relocations),
            (tag::RELAENT, 24),
            (tag::VERSYM, places.address(index::VERSYM)),
            (tag::VERDEF, places.address(index::VERDEF)),
            (tag::VERDEFNUM, self.definitions().into()),
            (0, 0),
        ];
        let mut bytes = Vec::new();
        let named = entries.iter().map(|&(tag, offset)| (tag, offset.into()));
        for (tag, value) in named.chain(of_sections) {
            bytes.put64(tag);
            bytes.put64(value);
        }
        bytes
    }
}

/// A function of the object.
struct Function {
    name: &'static str,
    /// Of its name in `.dynstr`.
    offset: u32,
    version: u16,
}

/// Index of the table in `.dynsym`. The functions follow it.
const TABLE_SYMBOL: u32 = 1;

/// `.gnu.version`: a version for each symbol. The table has none, whatever object it is in.
fn version_numbers(functions: &[Function]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let versions = [0, 1].into_iter().chain(functions.iter().map(|function| function.version));
    versions.for_each(|version| bytes.put16(version));
    bytes
}

/// `.hash`: a bucket for each function, with chains by index. What others define isn't in it.
fn hash_table(functions: &[Function]) -> Vec<u8> {
    let count = functions.len().max(1);
    let mut buckets = vec![0_u32; count];
    let mut chains = vec![0_u32; 2];
    for (symbol, function) in (TABLE_SYMBOL + 1..).zip(functions) {
        let bucket = &mut buckets[hash(function.name) as usize % count];
        chains.push(*bucket);
        *bucket = symbol;
    }
    let mut bytes = Vec::new();
    bytes.put32(count as u32);
    bytes.put32(chains.len() as u32);
    buckets.iter().chain(&chains).for_each(|&symbol| bytes.put32(symbol));
    bytes
}

/// `.dynsym`: none, the table, which is elsewhere, and the functions.
fn symbol_table(table: u32, functions: &[Function], places: &Places) -> Vec<u8> {
    const GLOBAL_OBJECT: u8 = 0x11;
    const GLOBAL_FUNCTION: u8 = 0x12;
    let mut bytes = vec![0; SYMBOL_LENGTH];
    bytes.put32(table);
    bytes.extend([GLOBAL_OBJECT, 0]);
    bytes.put16(0);
    bytes.put64(0);
    bytes.put64(0);
    let text = places.address(index::TEXT);
    for (address, function) in (text..).step_by(JUMP_LENGTH).zip(functions) {
        bytes.put32(function.offset);
        bytes.extend([GLOBAL_FUNCTION, 0]);
        bytes.put16(index::TEXT as u16);
        bytes.put64(address);
        bytes.put64(JUMP_LENGTH as u64);
    }
    bytes
}

/// `.rela.dyn`: the address of the table goes to `.got`.
fn relocations(processor: Processor, places: &Places) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put64(places.address(index::GOT));
    bytes.put64(u64::from(TABLE_SYMBOL) << 32 | processor.address_of_symbol());
    bytes.put64(0);
    bytes
}

/// Puts headers and sections together.
fn assemble(processor: Processor, sections: &[Section], places: &Places) -> Vec<u8> {
    let mut names = Strings::new();
    let name_offsets: Vec<u32> = sections.iter().map(|section| names.add(section.name)).collect();
    let own_name = names.add(".shstrtab");
    let headers_at = (places.in_file(index::NAMES) + names.0.len() as u64).next_multiple_of(8);

    let mut file = header(processor, headers_at);
    file.extend(program_headers(sections, places));
    for (number, section) in (1..).zip(sections) {
        file.resize(places.in_file(number) as usize, 0);
        file.extend(&section.bytes);
    }
    file.extend(&names.0);
    file.resize(headers_at as usize + SECTION_HEADER_LENGTH, 0);
    for ((number, section), name) in (1..).zip(sections).zip(name_offsets) {
        let place = places.in_file(number);
        let alignment = if section.entry == 2 { 2 } else { 8 };
        file.put32(name);
        file.put32(section.kind);
        let length = section.bytes.len() as u64;
        file.put64s(&[section.flags, places.address(number), place, length]);
        file.put32(section.link);
        file.put32(section.info);
        file.put64s(&[alignment, section.entry]);
    }
    file.put32(own_name);
    file.put32(kind::STRTAB);
    file.put64s(&[0, 0, places.in_file(index::NAMES), names.0.len() as u64]);
    file.put64s(&[0, 1, 0]);
    file
}

/// The ELF header of a shared object with [`index::COUNT`] sections.
fn header(processor: Processor, section_headers: u64) -> Vec<u8> {
    const SHARED_OBJECT: u16 = 3;
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    bytes.resize(16, 0);
    bytes.put16(SHARED_OBJECT);
    bytes.put16(processor.number());
    bytes.put32(1);
    bytes.put64s(&[0, HEADER_LENGTH as u64, section_headers]);
    bytes.put32(0);
    let lengths = [HEADER_LENGTH, PROGRAM_HEADER_LENGTH, PROGRAM_HEADERS, SECTION_HEADER_LENGTH];
    let fields = lengths.into_iter().chain([index::COUNT, index::NAMES]);
    fields.for_each(|field| bytes.put16(field as u16));
    bytes
}

fn program_headers(sections: &[Section], places: &Places) -> Vec<u8> {
    const LOAD: u32 = 1;
    const DYNAMIC: u32 = 2;
    const STACK: u32 = 0x6474_e551;
    let length_of = |index: usize| sections[index - 1].bytes.len() as u64;
    let end_of = |index| places.in_file(index) + length_of(index);
    let dynamic = places.in_file(index::DYNAMIC);
    let written = end_of(index::GOT) - dynamic;
    let mut bytes = Vec::new();
    for (kind, flags, place, address, length, alignment) in [
        (LOAD, flag::READ_CODE, 0, 0, end_of(index::TEXT), DATA),
        (LOAD, flag::READ_WRITE, dynamic, dynamic + DATA, written, DATA),
        (DYNAMIC, flag::READ_WRITE, dynamic, dynamic + DATA, length_of(index::DYNAMIC), 8),
        (STACK, flag::READ_WRITE, 0, 0, 0, 16),
    ] {
        bytes.put32(kind);
        bytes.put32(flags);
        bytes.put64s(&[place, address, address, length, length, alignment]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_that_of_the_system_v_abi() {
        // The value in `vna_hash` of any program that needs this version.
        assert_eq!(hash("GLIBC_2.2.5"), 0x0969_1a75);
        assert_eq!(hash(""), 0);
    }

    #[test]
    fn functions_jump_through_their_entry_of_the_table() {
        let x86 = Processor::X86_64.jump(0x660, 0x1_0900, 78);
        assert_eq!(x86[4..11], [0x4c, 0x8b, 0x1d, 0x95, 0x02, 0x01, 0x00]);
        assert_eq!(x86[11..18], [0x41, 0xff, 0xa3, 0x70, 0x02, 0x00, 0x00]);
        // bti c; ldr x16, .+0x1029c; ldr x16, [x16, #624]; br x16
        let arm = Processor::Aarch64.jump(0x660, 0x1_0900, 78);
        let words: Vec<_> = arm.chunks(4).take(4).map(|word| word.to_vec()).collect();
        let expected = [0xd503_245f_u32, 0x5808_14f0, 0xf941_3a10, 0xd61f_0200];
        assert_eq!(words, expected.map(|word| word.to_le_bytes().to_vec()));
    }

    #[test]
    fn headers_of_other_processors_are_no_processor() {
        let mut header = [0; HEADER_LENGTH];
        header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        header[18] = 183;
        assert_eq!(Processor::from_header(&header), Some(Processor::Aarch64));
        header[18] = 243;
        assert_eq!(Processor::from_header(&header), None);
        header[18] = 62;
        header[4] = 1;
        assert_eq!(Processor::from_header(&header), None);
    }
}
