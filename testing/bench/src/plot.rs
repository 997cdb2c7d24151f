//! Plots: grouped bars, and lines over a logarithmic axis.

use anyhow::{Result, anyhow};
use plotters::{
    coord::{Shift, ranged1d::ValueFormatter, types::RangedCoordf64},
    prelude::*,
};

pub type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Named values: one per group of bars, or one per point of a line.
pub struct Series {
    pub name: String,
    pub values: Vec<f64>,
}

const FONT: (&str, u32) = ("sans-serif", 14);
const TITLE: (&str, u32) = ("sans-serif", 18);

fn colour(index: usize) -> RGBColor {
    [
        RGBColor(31, 119, 180),
        RGBColor(255, 127, 14),
        RGBColor(44, 160, 44),
        RGBColor(214, 39, 40),
        RGBColor(148, 103, 189),
    ][index % 5]
}

fn highest(series: &[Series]) -> f64 {
    series.iter().flat_map(|series| &series.values).copied().fold(1.0, f64::max) * 1.08
}

/// Scale of the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    Linear,
    /// Logarithmic. Values below [`LOWEST`] are drawn at [`LOWEST`].
    Logarithmic,
}

const LOWEST: f64 = 0.01;

/// One group of bars per name in `groups`, one bar per series in each.
pub fn bars(
    area: &PlotArea<'_>,
    title: &str,
    unit: &str,
    groups: &[&str],
    series: &[Series],
    scale: AxisScale,
) -> Result<()> {
    let x_range = 0.0..groups.len() as f64;
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, TITLE).margin(12).x_label_area_size(34).y_label_area_size(64);
    // Labels are at whole numbers; the offset moves them to the middle of their group.
    let offset = (area.dim_in_pixel().0 as i32 - 88) / (groups.len() as i32 * 2);
    match scale {
        AxisScale::Linear => {
            // Leaves space for the legend.
            let chart = builder.build_cartesian_2d(x_range, 0.0..highest(series) * 1.3).map_err(draw_error)?;
            draw_bars(chart, unit, groups, series, 0.0, offset)
        }
        AxisScale::Logarithmic => {
            let floor = power_below(series);
            let y_range = (floor..highest(series) * 30.0).log_scale();
            let chart = builder.build_cartesian_2d(x_range, y_range).map_err(draw_error)?;
            draw_bars(chart, unit, groups, series, floor, offset)
        }
    }
}

/// The power of ten below all values, at which bars begin. A value of 0 has no bar.
fn power_below(series: &[Series]) -> f64 {
    let values = series.iter().flat_map(|series| &series.values).copied().filter(|value| *value > 0.0);
    let least = values.fold(f64::INFINITY, f64::min);
    if least.is_finite() { 10f64.powf((least * 0.99).log10().floor()).max(LOWEST) } else { LOWEST }
}

/// Labels of a logarithmic axis at 1, 2, 5, 10, 20 and so on; the others have no space.
fn axis_label(value: f64) -> String {
    let first = value / 10f64.powf((value * 1.0001).log10().floor());
    if [1.0, 2.0, 5.0].iter().any(|kept| (first - kept).abs() < 0.01) { value.to_string() } else { String::new() }
}

fn draw_bars<'a, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>,
    unit: &str,
    groups: &[&str],
    series: &[Series],
    floor: f64,
    offset: i32,
) -> Result<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let name = |position: &f64| groups.get(*position as usize).unwrap_or(&"").to_string();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(groups.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| if floor > 0.0 { axis_label(*y) } else { y.to_string() })
        .x_label_offset(offset)
        .y_desc(unit)
        .label_style(FONT)
        .draw()
        .map_err(draw_error)?;
    let width = 0.8 / series.len() as f64;
    for (index, one) in series.iter().enumerate() {
        let left = |group: usize| group as f64 + 0.1 + index as f64 * width;
        let bar = |(group, value): (usize, &f64)| {
            let right = left(group) + width * 0.9;
            Rectangle::new([(left(group), floor), (right, value.max(floor))], colour(index).filled())
        };
        chart
            .draw_series(one.values.iter().enumerate().map(bar))
            .map_err(draw_error)?
            .label(&one.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour(index).filled()));
    }
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// One line per series over the values of `at` on a logarithmic axis.
pub fn lines(
    area: &PlotArea<'_>,
    title: &str,
    unit: &str,
    at: &[u32],
    series: &[Series],
    scale: AxisScale,
) -> Result<()> {
    let x_range = (f64::from(at[0])..f64::from(at[at.len() - 1]) * 1.1).log_scale();
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, TITLE).margin(12).x_label_area_size(44).y_label_area_size(64);
    match scale {
        AxisScale::Linear => {
            let chart = builder.build_cartesian_2d(x_range, 0.0..highest(series)).map_err(draw_error)?;
            draw_lines(chart, unit, at, series, |value| value)
        }
        AxisScale::Logarithmic => {
            let y_range = (LOWEST..highest(series) * 3.0).log_scale();
            let chart = builder.build_cartesian_2d(x_range, y_range).map_err(draw_error)?;
            draw_lines(chart, unit, at, series, |value| value.max(LOWEST))
        }
    }
}

fn draw_lines<'a, X, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    unit: &str,
    at: &[u32],
    series: &[Series],
    place: impl Fn(f64) -> f64,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| y.to_string())
        .x_desc("services")
        .y_desc(unit)
        .label_style(FONT)
        .draw()
        .map_err(draw_error)?;
    for (index, one) in series.iter().enumerate() {
        let points = at.iter().map(|at| f64::from(*at)).zip(one.values.iter().map(|value| place(*value)));
        let stroke = colour(index).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, stroke).point_size(3))
            .map_err(draw_error)?
            .label(&one.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], stroke));
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

fn legend<'a, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .label_font(FONT)
        .draw()
        .map_err(draw_error)
}

/// Converts an error of plotters, which borrows the drawing area, to an owned error.
pub fn draw_error(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}
