//! `render` (McNamee, section 6.2.2): one frame of a scene in an octree. Cells out of view are passed over, and
//! those that are small on the picture are drawn as one; what is near takes more of the scene than what is far.

pub mod scene;

use crate::target::Failure;
use scene::{CELL, Cell, STONE, Stone, height};
use std::fs::File;
use std::path::Path;

const WIDTH: usize = 640;
const HEIGHT: usize = 480;
/// Of a picture one unit high.
const FOCUS: f32 = 480.0;
/// What is nearer is not drawn.
const NEAR: f32 = 0.004;
/// Cells are drawn as one that are smaller on the picture.
const COARSE: f32 = 1.2;

/// A frame, in bytes of red, green and blue.
pub struct Picture {
    pub bytes: Vec<u8>,
    depth: Vec<f32>,
    /// Cells and stones that were looked at.
    pub visited: u64,
}

/// The words of a scene, wherever they are.
#[derive(Clone, Copy)]
pub struct Words {
    pub base: *const u64,
    pub len: usize,
}

impl Words {
    fn at<const N: usize>(&self, number: u32) -> [u64; N] {
        assert!(number as usize + N <= self.len, "the scene ends before word {number}");
        // SAFETY: so many words are mapped, and nobody changes them.
        unsafe { self.base.add(number as usize).cast::<[u64; N]>().read() }
    }
}

/// Draws a scene as it is seen from its southern edge.
pub fn draw(words: Words) -> Picture {
    let mut picture =
        Picture { bytes: vec![0; WIDTH * HEIGHT * 3], depth: vec![f32::MAX; WIDTH * HEIGHT], visited: 0 };
    for (row, line) in picture.bytes.chunks_exact_mut(WIDTH * 3).enumerate() {
        let light = 140 + (row * 100 / HEIGHT) as u8;
        line.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&[light - 40, light, 250]));
    }
    let eye = [0.5, height(0.5, 0.02) + 0.05, 0.02];
    picture.cell(words, 0, eye);
    picture
}

impl Picture {
    fn cell(&mut self, words: Words, number: u32, eye: [f32; 3]) {
        self.visited += 1;
        let cell = Cell::of(words.at::<CELL>(number));
        let at: [f32; 3] = std::array::from_fn(|i| cell.centre[i] - eye[i]);
        // The ball about it.
        let reach = cell.half * 1.733;
        let far = at[2] + reach;
        let wide = |size: usize| (size as f32 / 2.0 / FOCUS) * far.max(NEAR) + reach * 1.5;
        if far < NEAR || at[0].abs() > wide(WIDTH) || at[1].abs() > wide(HEIGHT) {
            return;
        }
        if at[2] > reach && 2.0 * cell.half * FOCUS / at[2] < COARSE {
            return self.ball(at, cell.half, cell.colour);
        }
        if cell.stones > 0 {
            for i in 0..cell.stones {
                self.visited += 1;
                let stone = Stone::of(words.at::<STONE>(cell.parts[0] + i * STONE as u32));
                self.ball(std::array::from_fn(|i| stone.at[i] - eye[i]), stone.radius, stone.colour);
            }
            return;
        }
        // The nearer four come first.
        for part in cell.parts.into_iter().filter(|part| *part > 0) {
            self.cell(words, part, eye);
        }
    }

    fn ball(&mut self, at: [f32; 3], radius: f32, colour: [u8; 3]) {
        if at[2] < NEAR {
            return;
        }
        let scale = FOCUS / at[2];
        let (x, y) = (WIDTH as f32 / 2.0 + at[0] * scale, HEIGHT as f32 / 2.0 - at[1] * scale);
        let size = (radius * scale).max(0.5);
        let span = |centre: f32, end: usize| {
            let clamp = |edge: f32| edge.clamp(0.0, end as f32) as usize;
            clamp(centre - size)..clamp(centre + size + 1.0)
        };
        for row in span(y, HEIGHT) {
            for column in span(x, WIDTH) {
                let (dx, dy) = ((column as f32 - x) / size, (row as f32 - y) / size);
                let (place, round) = (row * WIDTH + column, 1.0 - dx * dx - dy * dy);
                if round <= 0.0 && size > 1.0 || self.depth[place] <= at[2] {
                    continue;
                }
                self.depth[place] = at[2];
                // Light from above, on the left.
                let light = (0.55 + 0.45 * (round.max(0.0).sqrt() - 0.3 * dx - 0.5 * dy)).clamp(0.2, 1.0);
                for (i, shade) in colour.into_iter().enumerate() {
                    self.bytes[place * 3 + i] = (f32::from(shade) * light) as u8;
                }
            }
        }
    }

    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let mut encoder = png::Encoder::new(File::create(path)?, WIDTH as u32, HEIGHT as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(&self.bytes)?;
        Ok(())
    }
}

/// What is in such a file.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut reader = png::Decoder::new(std::io::BufReader::new(File::open(path)?)).read_info()?;
    let mut bytes = vec![0; WIDTH * HEIGHT * 3];
    reader.next_frame(&mut bytes)?;
    Ok(bytes)
}
